"""Writes the pages that are generated from code. Run it after a change there: `python docs/generate.py`."""  # noqa: INP001  (a script beside the pages, not a package)

from pathlib import Path

from evertick.domain import states_page

PAGES = {"states.md": states_page.page}


def main() -> None:
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
