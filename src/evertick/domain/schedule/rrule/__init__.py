"""RFC 5545 recurrences: their text, and the days and times that they name."""
