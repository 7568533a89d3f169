"""What `import evertick` offers is a promise: a change here is a change of the public surface."""

import evertick


def test_the_exported_names_are_exactly_these() -> None:
    assert evertick.__all__ == ["EvertickError", "InvalidInput", "InvalidSchedule", "Schedule", "__version__"]


def test_the_exported_names_are_sorted_and_exist() -> None:
    assert sorted(evertick.__all__) == evertick.__all__
    assert all(hasattr(evertick, name) for name in evertick.__all__)
