"""All SQL, and the only place that knows there is a database. One typed function for each statement."""
