"""Creates two network namespaces on this machine. Each has its own address, and a link connects
them."""
import os
import subprocess

from tiny import skip

NAMES = [f"lathe{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.213.7.1", "10.213.7.2"]


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class Networks:
    """Holds two namespaces and a link between them."""

    def __enter__(self):
        links = [f"lt{os.getpid() % 100000}{side}" for side in "ab"]
        for name in NAMES:
            made = ip("netns", "add", name)
            if made.returncode != 0:
                self.__exit__()
                skip(f"network namespaces can't be made: {made.stderr.strip()}")
        made = ip("link", "add", links[0], "netns", NAMES[0], "type", "veth", "peer", "name", links[1], "netns", NAMES[1])
        if made.returncode != 0:
            self.__exit__()
            skip(f"a link between namespaces can't be made: {made.stderr.strip()}")
        for name, link, address in zip(NAMES, links, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        if ip("netns", "exec", NAMES[1], "true").returncode != 0:
            self.__exit__()
            skip("nothing may run in a network namespace")
        self.links = links
        return self

    def __exit__(self, *_):
        for name in NAMES:
            ip("netns", "del", name)

    def cut(self):
        ip("-n", NAMES[1], "link", "set", self.links[1], "down")

    def limit(self, rate):
        """Limits each direction of the link to a rate, such as "10gbit". Returns False if the
        system can't."""
        return all(subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate",
                                   rate, "burst", "10mb", "latency", "50ms"], capture_output=True).returncode == 0
                   for name, link in zip(NAMES, self.links))

    def mend(self):
        ip("-n", NAMES[1], "link", "set", self.links[1], "up")
