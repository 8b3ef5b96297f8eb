"""JupyterHub's settings for a class with this tutorial; docs/hub.md says where they go.

They hold on The Littlest JupyterHub (a link in its folder jupyterhub_config.d) and on any other
JupyterHub. Users, HTTPS and the culling of idle servers are The Littlest JupyterHub's own settings
and are not repeated here.
"""

from pathlib import Path

c = get_config()  # noqa: F821  JupyterHub provides it

TUTORIAL = Path(__file__).resolve().parents[2]  # the checkout, also when this file is a link to it
ASSETS = "/opt/bert-assets"  # models and texts, one copy for all, readable by everybody

# One environment for all: this script starts the server with the checkout's .venv.
c.Spawner.cmd = [str(TUTORIAL / "docs/hub/start")]
c.Spawner.default_url = "/lab/tree/bert-on-any-device/00_start_here.ipynb"
c.Spawner.environment = {
    "BERT_ASSETS": ASSETS,
    "HF_HUB_OFFLINE": "1",  # everything is in ASSETS: thirty notebooks ask no network for it
}

# A notebook needs 1.5 GB at its peak and the server 0.1 GB. Whoever opens a second one and exceeds
# the limit loses a kernel; without a limit, the whole class would lose the machine.
c.Spawner.mem_limit = "3G"
# At most so many CPUs for one learner. helpers sets the number of threads accordingly.
c.Spawner.cpu_limit = 2

# When a whole class logs in at once, the last server takes minutes to start on a small machine.
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300
