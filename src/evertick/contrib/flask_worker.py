"""Where `flask evertick worker` finds the App: that of the Flask application which FLASK_APP names."""

import os

from flask.cli import ScriptInfo

from evertick.contrib.flask import app_of

app = app_of(ScriptInfo(os.environ.get("FLASK_APP")).load_app())
