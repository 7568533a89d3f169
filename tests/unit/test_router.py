"""Which operation a path leads to."""

import pytest

from evertick.api.app import Router
from evertick.api.messages import HttpRequest, Response, no_content
from evertick.api.operations import Routes


def _router(*declared: tuple[str, str]) -> Router:
    routes = Routes("Things", prefix="")

    async def handler(request: HttpRequest) -> Response:
        return no_content()

    for method, path in declared:
        routes.operation(method, path, None)(handler)
    return Router(routes.operations)


ROUTER = _router(
    ("GET", "/things"),
    ("POST", "/things"),
    ("GET", "/things/{thing_id}"),
    ("POST", "/things/{thing_id}/stop"),
    ("POST", "/things/{thing_id}:test"),
    ("POST", "/things:batch"),
    ("PUT", "/things/by-name/{name}"),
)


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/things", "/things", {}),
        ("/things/", "/things", {}),
        ("//things", "/things", {}),
        ("/things:batch", "/things:batch", {}),
        ("/things/a", "/things/{thing_id}", {"thing_id": "a"}),
        ("/things/a b", "/things/{thing_id}", {"thing_id": "a b"}),
        ("/things/a/stop", "/things/{thing_id}/stop", {"thing_id": "a"}),
        ("/things/a:test", "/things/{thing_id}:test", {"thing_id": "a"}),
        ("/things/by-name/x", "/things/by-name/{name}", {"name": "x"}),
        ("/things/by-name/x/y", "/things/by-name/{name}", {"name": "x/y"}),
        ("/things/by-name/stop", "/things/by-name/{name}", {"name": "stop"}),
    ],
)
def test_a_path_leads_to_its_operation(path: str, template: str, parameters: dict[str, str]) -> None:
    found = ROUTER.match(path)
    assert found is not None
    assert {operation.path for operation in found.operations.values()} == {template}
    assert found.parameters == parameters


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/other",
        "/things/a/b",
        "/things/a/stop/x",
        "/things/by-name",
        "/Things",
        "/things/a:b",
        "/things/a:test/x",
    ],
)
def test_other_paths_lead_nowhere(path: str) -> None:
    assert ROUTER.match(path) is None


def test_the_path_that_was_found_has_no_empty_segments() -> None:
    found = ROUTER.match("//things//a/")
    assert found is not None
    assert found.path == "/things/a"


def test_what_is_allowed_at_a_path_names_all_methods() -> None:
    found = ROUTER.match("/things")
    assert found is not None
    assert found.allow == "GET, POST, HEAD, OPTIONS"


def test_two_operations_of_one_method_at_one_path_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        _router(("GET", "/things"), ("GET", "/things"))
