"""What a trial on one machine changes in jupyterhub_config.py: no accounts, ports of its own.

rehearse.py starts JupyterHub with it and sets the variables that it reads.
"""

import json
import os
from pathlib import Path

c = get_config()  # noqa: F821  JupyterHub provides it, and load_subconfig
# By its whole path: a file that is not found would be passed over in silence.
load_subconfig(str(Path(__file__).with_name("jupyterhub_config.py")))  # noqa: F821

given = json.loads(os.environ["LOOPBACK"])
# Processes without accounts of their own: for a trial only, since learners are not kept apart.
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = f"{given['folder']}/{{username}}"
c.Spawner.environment.update(given["environment"])
c.Spawner.args = [
    "--allow-root"
]  # as in a container; without accounts, learners are who started it
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = given["password"]
c.Authenticator.allow_all = True

public, hub, api = given["ports"]
c.JupyterHub.bind_url = f"http://127.0.0.1:{public}"
c.JupyterHub.hub_port = hub
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = given["proxy"]
c.ConfigurableHTTPProxy.pid_file = f"{given['folder']}/proxy.pid"
c.JupyterHub.db_url = f"sqlite:///{given['folder']}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{given['folder']}/cookie_secret"
