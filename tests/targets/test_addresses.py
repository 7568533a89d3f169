"""Which addresses a delivery may go to."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given, strategies as st

from evertick.targets.egress.guard import is_callable

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.32.0.1", "198.17.255.255"]
PUBLIC_6 = ["2606:4700:4700::1111", "2a00:1450:4001::200e", "2001:4860:4860::8888", "2400:cb00::1"]
NEVER = {
    "this network": ["0.0.0.0", "0.1.2.3"],
    "link-local, and cloud metadata in it": ["169.254.169.254", "169.254.170.2", "169.254.0.23", "fe80::a9fe:a9fe"],
    "cloud metadata elsewhere": ["100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"],
    "more cloud metadata": ["fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:ec2::23"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved and broadcast": ["240.0.0.1", "255.255.255.255"],
    "unspecified": ["::"],
    "IPv4-compatible": ["::7f00:1", "::808:808"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:169.254.169.254"],
    "IPv4-translated": ["::ffff:0:7f00:1", "::ffff:0:808:808"],
    "local NAT64": ["64:ff9b:1::a9fe:a9fe", "64:ff9b:1:7f00:0:100::"],
    "Teredo": ["2001:0:53aa:64c::1"],
    "6to4": ["2002:7f00:1::", "2002:808:808::1"],
    "site-local": ["fec0::1"],
    "with a zone": ["fe80::1%eth0", "2606:4700:4700::1111%1"],
}
UNLESS_OPENED = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"],
    "carrier": ["100.64.0.1", "100.127.255.255"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "protocols": ["192.0.0.1", "192.88.99.1", "2001:10::1", "2001:20::1", "2001:1::1"],
    "not given out": ["100::1", "4000::1", "5f00::1", "200::1"],
    "NAT64 of a private address": ["64:ff9b::a00:1", "64:ff9b::7f00:1"],
}
EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def _cases(table: dict[str, list[str]]) -> list[str]:
    return [text for texts in table.values() for text in texts]


@pytest.mark.parametrize("text", PUBLIC + PUBLIC_6)
def test_public_addresses_may_be_called(text: str) -> None:
    assert is_callable(ip_address(text))


@pytest.mark.parametrize("text", _cases(NEVER) + _cases(UNLESS_OPENED) + ["64:ff9b::808:808"])
def test_all_others_may_not(text: str) -> None:
    assert not is_callable(ip_address(text))


@pytest.mark.parametrize("text", _cases(UNLESS_OPENED))
def test_a_network_can_be_opened(text: str) -> None:
    assert is_callable(ip_address(text), EVERYTHING)


@pytest.mark.parametrize("text", _cases(NEVER))
def test_some_stay_refused_even_when_everything_is_opened(text: str) -> None:
    assert not is_callable(ip_address(text), EVERYTHING)


def test_an_opened_network_opens_nothing_else() -> None:
    opened = (ip_network("10.1.0.0/16"),)
    assert is_callable(ip_address("10.1.2.3"), opened)
    assert not is_callable(ip_address("10.2.0.1"), opened)
    assert not is_callable(ip_address("::ffff:10.1.2.3"), opened)


def test_behind_an_opened_translator_the_address_inside_counts() -> None:
    opened = (ip_network("64:ff9b::/96"),)
    assert is_callable(ip_address("64:ff9b::808:808"), opened)
    assert not is_callable(ip_address("64:ff9b::7f00:1"), opened)
    assert not is_callable(ip_address("64:ff9b::a9fe:a9fe"), EVERYTHING)


def test_a_tunnel_address_must_not_hide_a_private_one() -> None:
    assert not is_callable(ip_address("2606:4700::5efe:7f00:1"))
    assert not is_callable(ip_address("2606:4700::200:5efe:a9fe:a9fe"))
    assert is_callable(ip_address("2606:4700::5efe:808:808"))


@given(st.integers(0, 2**32 - 1))
def test_whatever_python_calls_private_is_refused_too(number: int) -> None:
    address = IPv4Address(number)
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_callable(address)


@given(st.integers(0, 2**128 - 1))
def test_only_allocated_space_of_ipv6_is_public(number: int) -> None:
    if number >> 125 != 0b001:
        assert not is_callable(IPv6Address(number))
