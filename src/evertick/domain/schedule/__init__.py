"""When a job fires: from the text of a schedule to instants, in every zone, both ways and countable."""
