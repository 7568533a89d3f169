"""FastAPI: the lifespan of Starlette, and the App as a dependency."""

from typing import Annotated, TypeAlias

from fastapi import Depends

from evertick.contrib.starlette import evertick_app, lifespan
from evertick.sdk.app import App

__all__ = ["EvertickApp", "evertick_app", "lifespan"]

EvertickApp: TypeAlias = Annotated[App, Depends(evertick_app)]
"""As a parameter of a route: the App."""
