"""What in a schedule is probably not meant, found before it fires."""
