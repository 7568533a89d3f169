"""What the pages of jobs show and read: the form of a job's fields, its code, its charts, its versions."""
