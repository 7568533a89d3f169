"""Finds a user's `App` by the text `module:name`, in the directory where the command was started."""

import importlib
import sys
from pathlib import Path

import typer

from evertick.sdk.app import App

DEFAULT_NAME = "app"


def load_app(text: str) -> App:
    """The app that `module:name` names; `module` alone means its `app`. What its own code raises passes."""
    module_name, _, name = text.partition(":")
    # As `python -m` does it, so that the modules beside the app are found too.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the module itself: one that it imports and that is missing is the app's own trouble.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise typer.BadParameter(f"there is no module {module_name!r} in {Path.cwd()} or among the installed") from None
    except ValueError:
        raise typer.BadParameter(f"{text!r} must read MODULE:APP, as in billing.tasks:app") from None
    app = getattr(module, name or DEFAULT_NAME, None)
    if not isinstance(app, App):
        raise typer.BadParameter(f"{module_name!r} has no App called {name or DEFAULT_NAME!r}")
    return app
