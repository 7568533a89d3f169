"""The App of a Django project: made from its settings, in the transactions and the database of Django."""

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote, urlencode

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections

from evertick.config.settings import Settings
from evertick.contrib.inside import HandlersInside
from evertick.contrib.options import checked
from evertick.domain.errors import InvalidInput
from evertick.sdk.app import App
from evertick.sdk.declarations import Function
from evertick.sdk.functions import SubmitOptions

if TYPE_CHECKING:
    from evertick.sdk.submitting import SubmittedSync

OF_APP = ("name", "queue", "database_url", "data_dir", "schema", "orphans", "concurrency", "threads")
OPTIONS = (*OF_APP, "database", "modules", "dashboard_url")
MODULES = ("jobs", "tasks")
_IN_URL = frozenset(
    {"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "passfile", "target_session_attrs"}
)
"""Options of a database of Django that its URL can have."""


class DjangoApp(App):
    """An App in a database of Django. What is submitted inside of `atomic()` is a part of the transaction."""

    def __init__(self, *, database: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.database = database
        self.declarations.handlers = HandlersInside(_fresh_connections, _fresh_connections_async)

    def settings(self) -> Settings:
        settings = super().settings()
        if not self._is_in_django:
            return settings
        # Now, not when the app is made: a test runner has another name for it.
        return replace(settings, database_url=url_of(connections[self.database].settings_dict))

    def submit_sync(
        self, handler: str | Function, payload: Any = None, **options: Unpack[SubmitOptions]
    ) -> "SubmittedSync[Any]":
        """As that of App; in a transaction of Django by default. `connection=None` commits at once."""
        if "connection" not in options and self._is_in_django and connections[self.database].in_atomic_block:
            options["connection"] = connections[self.database]
        return super().submit_sync(handler, payload, **options)

    @property
    def _is_in_django(self) -> bool:
        """Whether its database is one of Django: unless it has one of its own, as on a virtual clock."""
        return self.database is not None and self._database_url is None and self._data_dir is None


@contextmanager
def _fresh_connections() -> Iterator[None]:
    """As around a request: connections that are too old or broken are closed."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@asynccontextmanager
async def _fresh_connections_async() -> AsyncIterator[None]:
    """As around a request: in a thread of its own for the database, whose connections no other handler closes."""
    async with ThreadSensitiveContext():
        await sync_to_async(close_old_connections)()
        try:
            yield
        finally:
            await sync_to_async(close_old_connections)()


@functools.cache
def app_of_settings() -> DjangoApp:
    """The App that `EVERTICK` in the settings describes."""
    options = options_of_settings()
    try:
        return DjangoApp(database=_database(options), **{name: options[name] for name in OF_APP if name in options})
    except InvalidInput as refused:
        raise ImproperlyConfigured(f"EVERTICK[{refused.field!r}] {refused.reason}") from None


def options_of_settings() -> dict[str, Any]:
    try:
        return dict(checked(getattr(django_settings, "EVERTICK", {}), OPTIONS, "EVERTICK"))
    except InvalidInput as refused:
        raise ImproperlyConfigured(f"EVERTICK {refused.reason}") from None


def _database(options: dict[str, Any]) -> str | None:
    """The alias of the database: by default `default`, if that is PostgreSQL."""
    if options.get("database_url") or options.get("data_dir"):
        return None
    alias: str | None = options.get("database", DEFAULT_DB_ALIAS)
    if alias is None or connections[alias].vendor == "postgresql":
        return alias
    if "database" in options:
        raise ImproperlyConfigured(
            f"EVERTICK['database'] is {alias!r}, a {connections[alias].display_name} database: PostgreSQL is needed"
        )
    return None


def url_of(database: dict[str, Any]) -> str:
    """The URL of a database in the settings of Django."""
    options = database.get("OPTIONS") or {}
    if "service" in options:
        raise ImproperlyConfigured("a database with a service has no URL: give it by EVERTICK['database_url']")
    query = {name: str(value) for name, value in options.items() if name in _IN_URL}
    host = database.get("HOST") or ""
    if host.startswith("/"):
        query["host"], host = host, ""
        if database.get("PORT"):
            query["port"] = str(database["PORT"])
    elif database.get("PORT"):
        host = f"{host}:{database['PORT']}"
    user = quote(database.get("USER") or "", safe="")
    password = f":{quote(database['PASSWORD'], safe='')}" if database.get("PASSWORD") else ""
    at = "@" if user or password else ""
    words = f"?{urlencode(query)}" if query else ""
    return f"postgresql://{user}{password}{at}{host}/{quote(str(database['NAME']), safe='')}{words}"
