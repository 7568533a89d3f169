"""How runs reach what they are for: one package for each kind of target, none knowing another."""
