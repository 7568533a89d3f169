"""How long a host without a free slot is left alone."""

from evertick.roles.dispatcher.jams import JAM_SECONDS, Jams, host_of

HOST, SAME_HOST, OTHER = map(host_of, ("https://a.test/x", "https://a.test/y", "https://b.test/x"))


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_jam_holds_for_one_host_until_a_delivery_to_it_ends() -> None:
    jams = Jams(Time())
    jams.begin(HOST)
    assert (jams.holds(SAME_HOST), jams.holds(OTHER)) == (True, False)
    jams.end(SAME_HOST)
    assert not jams.holds(HOST)


def test_a_jam_ends_by_itself_and_is_forgotten() -> None:
    time = Time()
    jams = Jams(time)
    jams.begin(HOST)
    time.now += JAM_SECONDS
    assert not jams.holds(HOST)
    jams.begin(OTHER)
    assert len(jams._ends) == 1


def test_what_is_no_url_is_a_place_of_its_own() -> None:
    assert host_of("https://[broken") == "https://[broken"
