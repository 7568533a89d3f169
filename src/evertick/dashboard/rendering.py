"""Makes responses of templates: pages, fragments, redirects, and pages that say what is wrong."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote, urlencode

import jinja2
from markupsafe import Markup

from evertick.api.messages import AuthenticatedRequest, HttpRequest, Response
from evertick.api.operations import Routes, Surface
from evertick.api.problems import HttpProblem, Kind, problem_of
from evertick.dashboard import assets, charts, formatting
from evertick.dashboard.sessions import CSRF_FIELD, authenticate, cookie, cookies_of, csrf_token
from evertick.domain.access import KeyRole, allows
from evertick.domain.errors import EvertickError
from evertick.version import __version__

HTML = "text/html; charset=utf-8"
THEME_COOKIE = "evertick_theme"
TOAST_COOKIE = "evertick_toast"
FRAGMENT_HEADER = "x-evertick-fragment"
"""The script of a page asks for a part of it."""
_THEMES = ("light", "dark")
_TOAST_SECONDS = 20
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # With no-referrer, browsers would send forms without their origin.
    "Referrer-Policy": "same-origin",
}
_NAVIGATION = (
    ("Overview", "/", "o", KeyRole.VIEWER),
    ("Jobs", "/jobs", "j", KeyRole.VIEWER),
    ("Runs", "/runs", "r", KeyRole.VIEWER),
    ("Dead letters", "/dead-letters", "d", KeyRole.VIEWER),
    ("Alerts", "/alerts", "a", KeyRole.VIEWER),
    ("Forecast", "/forecast", "f", KeyRole.VIEWER),
    ("Cluster", "/cluster", "c", KeyRole.VIEWER),
    ("Settings", "/settings", "s", KeyRole.ADMIN),
)


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("evertick.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "number": formatting.number,
        "limit": formatting.limit,
        "size": formatting.size,
        "seconds": formatting.seconds,
        "milliseconds": formatting.milliseconds,
        "absolute": formatting.absolute,
        "instant": formatting.instant,
    }
    made.globals |= {
        "charts": charts,
        "relative": formatting.relative,
        "target_text": formatting.target_text,
        "version": __version__,
    }
    return made


class _View:
    """What every template can use, of one request."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._caller = request.caller if isinstance(request, AuthenticatedRequest) else None
        self._cookies = cookies_of(request.headers)

    def context(self) -> dict[str, Any]:
        theme = self._cookies.get(THEME_COOKIE)
        return {
            "url": self.url,
            "static": lambda name: self.url(assets.path_of(name)),
            "can": self.can,
            "csrf": self.csrf,
            "user": self._caller,
            "path": self._request.path,
            "prefix": self._request.client.prefix,
            "theme": theme if theme in _THEMES else "auto",
            "toast": unquote(self._cookies.get(TOAST_COOKIE, ""))[:300],
            "navigation": [
                (label, path, key, self._is_here(path)) for label, path, key, role in _NAVIGATION if self.can(role)
            ],
            "now_at": datetime.now(UTC),
            "errors": {},
            "fields": {},
        }

    def url(self, path: str, **query: Any) -> str:
        given = {name: _parameter(value) for name, value in query.items() if value not in (None, "", [])}
        return url_of(self._request, path) + (f"?{urlencode(given, doseq=True)}" if given else "")

    def can(self, role: str) -> bool:
        return self._caller is not None and allows(self._caller.role, KeyRole(role))

    def csrf(self) -> Markup:
        return Markup('<input type="hidden" name="{}" value="{}">').format(
            CSRF_FIELD, csrf_token(self._request.headers)
        )

    def _is_here(self, path: str) -> bool:
        here = self._request.path
        return here == path if path == "/" else here == path or here.startswith(f"{path}/")


def _parameter(value: object) -> object:
    """As the API reads it in a query."""
    return str(value).lower() if isinstance(value, bool) else value


def url_of(request: HttpRequest, path: str) -> str:
    """A path of ours as the browser sees it."""
    return request.client.prefix + quote(path, safe="/:@!$&'()*+,;=-._~")


def draw(request: HttpRequest, template: str, **context: Any) -> str:
    """A template filled for a request."""
    return _environment().get_template(template).render({**_View(request).context(), **context})


def render(request: HttpRequest, template: str, *, status: int = 200, **context: Any) -> Response:
    """A page, or a fragment of one."""
    headers = dict(_HEADERS)
    if TOAST_COOKIE in cookies_of(request.headers) and FRAGMENT_HEADER not in request.headers:
        headers["Set-Cookie"] = cookie(request, TOAST_COOKIE, "", max_age=0)
    return Response(status, draw(request, template, **context).encode(), headers, media_type=HTML)


def redirect(request: HttpRequest, path: str, *, toast: str = "", subject: str | None = None) -> Response:
    """Go on with a GET. The next page shows the toast; `subject` is for the audit log."""
    headers = {**_HEADERS, "Location": url_of(request, path)}
    if toast:
        headers["Set-Cookie"] = cookie(request, TOAST_COOKIE, quote(toast), max_age=_TOAST_SECONDS)
    return Response(303, b"", headers, media_type=HTML, subject=subject)


class _Redisplayed(HttpProblem):
    """A form that was refused, with the page that shows it again."""

    def __init__(self, problem: HttpProblem, page: Response) -> None:
        super().__init__(problem.kind, problem.detail, problem.faults)
        self.page = page


@contextmanager
def redisplayed(
    request: HttpRequest,
    template: str,
    *,
    fields: Mapping[str, Any],
    name_of: Callable[[str], str] = lambda pointer: pointer.removeprefix("/"),
    **context: Any,
) -> Iterator[None]:
    """Show a form again if what it asks for is refused, with the reasons at its fields.

    `name_of` gives the field that a pointer means; reasons without one are at the empty name.
    """
    try:
        yield
    except (HttpProblem, EvertickError) as error:
        problem = problem_of(error, request.request_id)
        if problem.kind not in {
            Kind.INVALID,
            Kind.NAME_TAKEN,
            Kind.OVER_QUOTA,
            Kind.VERSION_CONFLICT,
            Kind.WRONG_STATE,
        }:
            raise
        errors = {name_of(fault.pointer): fault.reason for fault in problem.faults} or {"": problem.detail}
        page = render(request, template, status=problem.kind.status, fields=fields, errors=errors, **context)
        raise _Redisplayed(problem, page) from error


def show_problem(problem: HttpProblem, request: HttpRequest) -> Response:
    """A page that says what is wrong; without a session, the way to the login."""
    if isinstance(problem, _Redisplayed):
        return problem.page
    if problem.kind is Kind.UNAUTHENTICATED and FRAGMENT_HEADER not in request.headers:
        query = request.query_string.decode("latin-1")
        wanted = request.path + (f"?{query}" if query else "") if request.method == "GET" else "/"
        response = redirect(request, "/login")
        if wanted != "/":
            response.headers["Location"] += f"?{urlencode({'next': wanted})}"
        return response
    response = render(
        request, "problem.html", status=problem.kind.status, problem=problem, request_id=request.request_id
    )
    response.headers |= problem.headers
    return response


PAGES = Surface(authenticate, show_problem, ignores_blanks=True)


def page_routes(tag: str) -> Routes:
    """The pages of one module."""
    return Routes(tag, prefix="", surface=PAGES)
