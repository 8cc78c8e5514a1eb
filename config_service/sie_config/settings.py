"""The settings of the config service; each field is the environment variable ``SIE_<FIELD>``."""

from __future__ import annotations

from sie_broker.jetstream.streams import Limits


class Settings(Limits, frozen=True, kw_only=True):
    """Read once at the start. The limits of streams are its own too: it provisions them."""

    nats_url: str = "nats://127.0.0.1:4222"
    """The NATS server."""
    host: str = "127.0.0.1"
    """The address to listen on; the port is ``PORT``, as Knative sets it."""
    replica: str = ""
    """This copy's name. One that starts again under its name writes again at once; no two that live may share one."""
    models: str = ""
    """Which models to serve: ids separated by commas, or a folder of specs. Empty: the whole catalogue."""
    machine_profiles: str = "cpu"
    """The machine profiles that are deployed, separated by commas, in any order."""
    pools: str = ""
    """The pools that workers are started in (``SIE_POOL``), separated by commas; empty: whichever a spec names."""
    admin_token: str = ""
    """Bearer tokens, separated by commas, of those who may change the catalogue; empty: nobody may."""
    config_sink: str = ""
    """A URL that is sent every change of the catalogue as a CloudEvent, a Knative broker's for instance."""
    config_read_token: str = ""
    """Bearer tokens, separated by commas, of those who may read it; empty: everybody may."""
