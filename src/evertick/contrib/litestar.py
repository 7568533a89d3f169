"""Litestar: a plugin that starts and stops an App with the web application, and gives it to handlers of routes."""

from contextlib import AbstractAsyncContextManager

from litestar import Litestar
from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.plugins import InitPlugin

from evertick.contrib.lifespan import Runs, checked, running
from evertick.sdk.app import App

__all__ = ["EvertickPlugin"]


class EvertickPlugin(InitPlugin):
    """`Litestar(plugins=[EvertickPlugin(jobs)])`. Handlers of routes get the App as the dependency `evertick`."""

    def __init__(self, app: App, *, runs: Runs = "everything", dependency: str = "evertick") -> None:
        checked(runs)
        self._app = app
        self._runs = runs
        self._dependency = dependency

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.lifespan.append(self._lifespan)
        app_config.dependencies[self._dependency] = Provide(self._provide, sync_to_thread=False)
        app_config.signature_types.append(App)
        return app_config

    def _lifespan(self, _: Litestar) -> AbstractAsyncContextManager[None]:
        return running(self._app, self._runs)

    def _provide(self) -> App:
        return self._app
