"""`crocodil play`: the playground, a local page in a browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crocodil.cli import options
from crocodil.cli.root import USE, app, check_installed
from crocodil.cli.texts import printable
from crocodil.pipeline.settings import BUILTIN, read_settings, settings_file

if TYPE_CHECKING:
    from crocodil.pipeline import Crocodil

LOCAL, PORT = "127.0.0.1", 8765


@app.command(rich_help_panel=USE)
def play(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on. For other addresses a secret token is added to the URL.")
    ] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = PORT,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Do not serve a page; write one with recorded runs to this folder."),
    ] = None,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Open a local web page that shows how registers change a text.

    Nothing is sent to other machines. Press Ctrl-C to stop.
    """
    read_settings(settings_file(model))
    if export is not None and export.exists():
        raise ValueError(f"{printable(export)} exists: choose a new folder")
    if export is not None and (host, port) != (LOCAL, PORT):
        raise ValueError("--export writes a page and serves none: leave out --host and --port")
    if export is None:
        check_installed("play", "starlette", "uvicorn")
    from crocodil.pipeline import Crocodil

    typer.echo("loading the model ...", err=True)
    pipe = Crocodil.from_pretrained(model, device=device)
    if export is None:
        _serve(pipe, model, host, port, browser=browser)
    else:
        _export(pipe, model, export)


def _serve(pipe: "Crocodil", name: str, host: str, port: int, *, browser: bool) -> None:
    import secrets
    import socket
    import threading
    import webbrowser

    import uvicorn

    from crocodil.play.server import LOCAL_HOSTS, create_app

    is_local = host in LOCAL_HOSTS
    token = None if is_local else secrets.token_urlsafe(24)
    application = create_app(pipe, name=name, token=token, hosts=LOCAL_HOSTS if is_local else ["*"])
    with socket.create_server((host, port)) as listening:
        address = f"http://{host}:{listening.getsockname()[1]}/" + (f"#token={token}" if token else "")
        typer.echo(f"{address}  (Ctrl-C stops it)")
        if browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


def _export(pipe: "Crocodil", name: str, directory: Path) -> None:
    from crocodil.play.export import export
    from crocodil.play.static_page import about

    def on_run(done: int, count: int) -> None:
        typer.echo(f"recording run {done + 1} of {count}", err=True)

    export(pipe, directory, known=about(pipe, name), on_run=on_run)
    typer.echo(f"{printable(directory)}: open index.html, or host the folder anywhere")
