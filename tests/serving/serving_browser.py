"""A headless chromium that is told what to do over a pipe (the DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]


class Browser:
    """One page of a browser."""

    def __init__(self, profile: Path) -> None:
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        # The browser reads commands at descriptor 3 and answers at 4.
        script = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, str(BROWSER), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_child, from_child),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        targets = self.tell("Target.getTargets", session=False)["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.tell("Target.attachToTarget", session=False, targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, session: bool = True, **params: Any) -> dict[str, Any]:
        """Give a command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], 60)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def size(self, width: int, height: int) -> None:
        """The window that the page sees."""
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def open(self, url: str) -> None:
        """Go to a page."""
        self.tell("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives."""
        told = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, expression: str, most_s: float = 30.0) -> Any:
        """Wait until an expression is true, and give its value."""
        until = time.monotonic() + most_s
        while True:
            found = self.value(expression)
            if found:
                return found
            assert time.monotonic() < until, f"{expression} stays {found!r}"
            time.sleep(0.05)

    def fill(self, name: str, text: str) -> None:
        """Write into a field of the form."""
        self.value(
            f"(() => {{ const field = document.querySelector('input[name={json.dumps(name)}]');"
            f"field.value = {json.dumps(text)};"
            "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        told = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def problems(self) -> list[str]:
        """Errors of scripts and of the policy, and requests to other hosts than this one."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if method == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            if method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("http://127.0.0.1", "data:", "about:")):
                    found.append(url)
        return found

    def close(self) -> None:
        """End the browser."""
        try:
            self.tell("Browser.close", session=False)
        except (AssertionError, OSError):
            self._process.kill()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)
