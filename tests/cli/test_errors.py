"""Exit codes, which are the same on a database and over the API."""

import pytest

from evertick.cli.errors import exit_code_of
from evertick.client.errors import (
    ApiError,
    ApiProblem,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from evertick.domain.errors import EvertickError, Fault, InvalidFields
from evertick.usecases.errors import JobNotFound, NameTaken


def answered(kind: type[ApiError], status: int | None) -> ApiError:
    return kind(ApiProblem(method="POST", path="/jobs", status=status))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, NameTaken("report")),
        (1, NameTaken("acme", "tenant")),
        (1, answered(Conflict, 409)),
        (1, JobNotFound("report")),
        (1, answered(NotFound, 404)),
        (1, answered(Unauthorized, 401)),
        (1, answered(Forbidden, 403)),
        (1, answered(TooManyRequests, 429)),
        (1, answered(ServerError, 500)),
        (2, InvalidFields([Fault("/schedule", "cannot be read")])),
        (2, answered(Invalid, 422)),
        (3, answered(Unreachable, None)),
        (3, answered(ServerError, 502)),
        (3, answered(ServerError, 503)),
        (3, answered(ServerError, 504)),
    ],
)
def test_each_failure_has_its_exit_code(code: int, error: EvertickError) -> None:
    assert exit_code_of(error) == code
