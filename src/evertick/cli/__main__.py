"""`python -m evertick.cli`: the `evertick` command of exactly this interpreter."""

from evertick.cli.entry import main

main()
