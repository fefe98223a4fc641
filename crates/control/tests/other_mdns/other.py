"""An mDNS responder and browser by python-zeroconf.

Arguments: the service, and the address to use. Each line read is a JSON object,
{"publish": {name, port, addresses, properties}} or {"withdraw": name}; each line written is what
was received under a name, or null after a goodbye. When a publication is complete, true is
written under its name with the prefix "published-".
"""

import functools
import json
import sys
import threading

import zeroconf._services.info
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

# The name of the service has an underscore: later versions have an option for that.
names = zeroconf._services.info
names.service_type_name = functools.partial(names.service_type_name, strict=False)

service, address = sys.argv[1:]
network = Zeroconf(interfaces=[address], ip_version=IPVersion.V4Only)
writing = threading.Lock()
published = {}


def say(name, what):
    with writing:
        print(json.dumps([name, what]), flush=True)


def changed(zeroconf, service_type, name, state_change):
    if state_change is ServiceStateChange.Removed:
        say(name, None)
        return
    info = zeroconf.get_service_info(service_type, name)
    if info is not None:
        properties = {key.decode(): (value or b"").decode() for key, value in info.properties.items()}
        say(name, {
            "server": info.server,
            "port": info.port,
            "addresses": info.parsed_addresses(),
            "properties": properties,
        })


ServiceBrowser(network, service, handlers=[changed])
for line in sys.stdin:
    command = json.loads(line)
    if "publish" in command:
        what = command["publish"]
        info = ServiceInfo(
            service,
            f"{what['name']}.{service}",
            port=what["port"],
            server=f"{what['name']}.local.",
            parsed_addresses=what["addresses"],
            properties=what["properties"],
        )
        published[what["name"]] = info
        network.register_service(info, cooperating_responders=True)
        say(f"published-{what['name']}.{service}", True)
    else:
        network.unregister_service(published.pop(command["withdraw"]))
network.close()
