"""The command `serve`: the proxy itself, until it is told to end."""

import click

from proxy import app, probe
from proxy.commands.live import live
from proxy.commands.options import Common, Failed, common, out_json
from proxy.commands.settled import file_of, same_place, settings_again, settings_of
from proxy.config import Overrides, explain
from proxy.terminal.welcome import welcome


@click.command("serve")
@click.option("--listen", metavar="HOST:PORT", help="The data port; 127.0.0.1:4040 unless configured.")
@click.option("--admin", metavar="HOST:PORT", help="The admin port; 127.0.0.1:4041 unless configured.")
@click.option("--upstream", "urls", multiple=True, metavar="NAME=URL", help="Add an upstream, or move one.")
@common
def serve_command(common: Common, listen: str | None, admin: str | None, urls: tuple[str, ...]) -> None:
    """Run the proxy until Ctrl-C; SIGHUP or a changed config file loads the settings again.

    \b
    looptap serve
    looptap serve --config looptap.yaml --listen 127.0.0.1:5050
    looptap serve --upstream acme=https://llm.acme.example/v1
    """
    over = Overrides(listen, admin, urls)
    settings = settings_of(common, over)
    file = file_of(common)

    def announce(running: app.Running) -> None:
        if common.json:
            out_json(
                {
                    "data_url": running.data_url,
                    "admin_url": running.admin_url,
                    "record": running.record_away or "ok",
                    "says": list(explain(settings)),
                }
            )
        else:
            away, place = running.record_away, same_place(common)
            for line in welcome(settings, running.data_url, running.admin_url, away, place):
                click.echo(line)

    if probe.enforces(settings):
        try:
            live(probe.prove(settings))
        except probe.NotEnforced as problem:
            raise Failed(f"{problem}; not starting, since its caps would not hold") from None
    served = app.serve(
        settings, announce=announce, warn=app.stderr_warning, watch=file,
        load_again=lambda old: settings_again(common, old, over) if file is not None else old,
    )  # fmt: skip
    live(served)
