"""What people type into the search for jobs."""

import pytest

from evertick.api.decoding import parse_query
from evertick.api.problems import HttpProblem, Kind
from evertick.dashboard.pages.jobs import JobsPageQuery


def test_a_search_for_what_no_name_can_hold_is_refused_and_no_error_of_the_server() -> None:
    with pytest.raises(HttpProblem) as refused:
        parse_query(b"q=a%00b", JobsPageQuery)
    assert (refused.value.kind, refused.value.faults[0].pointer) == (Kind.INVALID, "/q")
