"""Addresses: parsing as a table, resolving and ports on loopback."""

import re
import socket

import pytest

from replicax.cluster import addresses
from replicax.cluster.addresses import Address, parse_address
from replicax.core.errors import ClusterError

ADDRESSES = {
    "host0:2222": Address("host0", 2222),
    "HOST-0.example.com:1": Address("HOST-0.example.com", 1),
    "host.:65535": Address("host.", 65535),
    "my_service:80": Address("my_service", 80),
    "10.0.0.1:2222": Address("10.0.0.1", 2222),
    "[::1]:2222": Address("::1", 2222),
    "[fe80::1%eth0]:2222": Address("fe80::1%eth0", 2222),
}

MISTAKES = {
    "host0": "the address 'host0' has no port. Write host:port, such as 'host0:2222'",
    "": "the address '' has no port.",
    "host0:": "the port of the address 'host0:' is ''; expected a number from 1 to 65535.",
    "host0:http": "the port of the address 'host0:http' is 'http'; expected a number from 1 to",
    "host0:0": "the port of the address 'host0:0' is '0'; expected a number from 1 to 65535.",
    "host0:65536": "the port of the address 'host0:65536' is '65536'; expected a number from 1",
    "host0:-1": "the port of the address 'host0:-1' is '-1'; expected a number from 1 to 65535.",
    "host0:\u0662": "expected a number from 1 to 65535.",
    ":2222": "the address ':2222' has no host.",
    "a b:2222": "the address 'a b:2222' has the host 'a b', which is no host name.",
    "-a:2222": "the address '-a:2222' has the host '-a', which is no host name.",
    "grpc://host0:2222": "the address 'grpc://host0:2222' has a scheme. Leave it out.",
    "::1": "the IPv6 address '::1' has no brackets.",
    "fd00::1:2222": "the IPv6 address 'fd00::1:2222' has no brackets.",
    "[::1]": "the address '[::1]' has no port.",
    "[::1": "the address '[::1' has no port.",
    "[host0]:2222": "the address '[host0]:2222' has no IPv6 address in its brackets.",
    2222: "an address is a string, got 2222.",
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_parsed_and_shown_alike(text):
    assert parse_address(text) == ADDRESSES[text]
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", MISTAKES)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ClusterError, match=re.escape(MISTAKES[text])):
        parse_address(text)


def test_tasks_of_one_host_get_consecutive_ports_in_any_order():
    hosts = ["n1", "n2", "n1", "fd00::1", "n2"]
    expected = ["n1:10", "n2:10", "n1:11", "[fd00::1]:10", "n2:11"]
    assert addresses.task_addresses(hosts, 10) == expected


@pytest.mark.parametrize("port", [0, 65535])
def test_a_port_that_does_not_exist_is_refused(port):
    with pytest.raises(ClusterError, match=r"of host 'n1' would get port (0|65536); expected 1"):
        addresses.task_addresses(["n1", "n1"], port)


def test_loopback_is_told_from_other_addresses():
    assert addresses.is_loopback("localhost")
    assert addresses.is_loopback("127.0.1.1")
    assert addresses.is_loopback("::1")
    assert not addresses.is_loopback("192.0.2.1")
    assert not addresses.is_loopback("2001:db8::1")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".invalid"])
def test_a_name_that_nobody_knows_is_an_error(host):
    with pytest.raises(ClusterError, match=f"the host name '{host}' does not resolve on this"):
        addresses.resolve_host(host)


def test_free_ports_are_different_and_can_be_used():
    ports = addresses.free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass
    assert 0 < addresses.free_port() <= addresses.MAX_PORT


def test_a_port_of_another_machine_cannot_be_had():
    with pytest.raises(ClusterError, match=r"this machine has no interface '192\.0\.2\.1'"):
        addresses.free_port("192.0.2.1")


@pytest.mark.parametrize(
    ("cluster", "ip"),
    [
        (["127.0.0.1:1", "localhost:2"], "127.0.0.1"),
        (["127.0.0.1:1", "127.0.0.2:1"], "127.0.0.1"),
        (["[::ffff:127.0.0.1]:1", "127.0.0.1:2"], "::ffff:127.0.0.1"),
        (["127.0.1.1:1"], "127.0.1.1"),
    ],
)
def test_a_task_of_a_local_cluster_listens_at_the_loopback_address_of_its_own(cluster, ip):
    assert addresses.own_ip(cluster, 0) == ip


OWN_MISTAKES = {
    "loopback among several": (
        ["127.0.1.1:1", "192.0.2.1:1"],
        "the host of this task, '127.0.1.1', resolves to 127.0.1.1 here, which only this machine "
        "can reach, and the cluster has a task at '192.0.2.1:1'. Use the address of a network",
    ),
    "loopback beside a name that is not known here": (
        ["127.0.1.1:1", "no-such-host.invalid:1"],
        "the cluster has a task at 'no-such-host.invalid:1'.",
    ),
    "another machine": (
        ["192.0.2.1:1", "192.0.2.2:1"],
        "this task cannot listen at 192.0.2.1:1: '192.0.2.1' resolves to 192.0.2.1 here, which is "
        "no address of this machine. Correct the cluster, or the type and index of this task.",
    ),
    "all interfaces": (
        ["0.0.0.0:1", "192.0.2.1:1"],
        "the host of this task, '0.0.0.0', means every interface of a machine: others cannot",
    ),
    "all interfaces, IPv6": (["[::]:1"], "the host of this task, '::', means every interface"),
}


@pytest.mark.parametrize("name", OWN_MISTAKES)
def test_an_address_at_which_a_task_cannot_be_reached_is_refused(name):
    cluster, message = OWN_MISTAKES[name]
    with pytest.raises(ClusterError, match=re.escape(message)):
        addresses.own_ip(cluster, 0)
