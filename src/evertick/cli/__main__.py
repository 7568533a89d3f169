"""`python -m evertick.cli`: the `evertick` command of exactly this interpreter."""

from evertick.cli.main import main

main()
