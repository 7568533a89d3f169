"""Bodies: how they are read and decoded, and how much memory they may take."""
