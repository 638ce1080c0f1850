"""Headless Chromium through the DevTools protocol: real keys, real mouse, screenshots.

with Browser() as browser:
    page = browser.open("file:///tmp/report.html")
    page.press("w")
    page.screenshot(Path("shot.png"))
"""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Key -> (code, virtual key code) where they do not follow from the letter.
SPECIAL_KEYS = {
    "Enter": ("Enter", 13),
    "Escape": ("Escape", 27),
    "Tab": ("Tab", 9),
    "ArrowLeft": ("ArrowLeft", 37),
    "ArrowUp": ("ArrowUp", 38),
    "ArrowRight": ("ArrowRight", 39),
    "ArrowDown": ("ArrowDown", 40),
    "?": ("Slash", 191),
    "/": ("Slash", 191),
}


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, *flags: str):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [find_chromium() or "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--remote-debugging-port=0", "--remote-allow-origins=*", "--no-first-run",
                   "--hide-scrollbars", f"--user-data-dir={self.profile.name}", *flags,
                   "about:blank"]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.port = self._wait_for_port()

    def _wait_for_port(self) -> int:
        file = Path(self.profile.name) / "DevToolsActivePort"
        for _ in range(600):
            if file.is_file() and (lines := file.read_text().splitlines()):
                return int(lines[0])
            if self.process.poll() is not None:
                raise RuntimeError(f"chromium ended with status {self.process.returncode}")
            time.sleep(0.05)
        raise RuntimeError("chromium did not open its debugging port within 30 s")

    def open(self, url: str, width: int = 1280, height: int = 800, **media: str) -> "Page":
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(request) as answer:
            target = json.load(answer)
        page = Page(target["webSocketDebuggerUrl"])
        page.set_size(width, height)
        page.set_media(**media)
        page.go(url)
        return page

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Page:
    """One tab. `errors` collects console errors and exceptions, `requests` every URL asked for."""

    def __init__(self, address: str):
        self.socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self.numbers = itertools.count(1)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._notice(message)

    def _notice(self, message: dict) -> None:
        method, facts = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = facts["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and facts["type"] == "error":
            self.errors.append(str([value.get("value") for value in facts["args"]]))
        elif method == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.errors.append(facts["entry"]["text"])

    def go(self, url: str, timeout: float = 60) -> None:
        self.loaded = False
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'", timeout)

    def evaluate(self, expression: str) -> object:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True, userGesture=True)  # fmt: skip
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            raise RuntimeError(f"{expression}: {text}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout: float = 30) -> object:
        end = time.monotonic() + timeout
        while True:
            try:
                if value := self.evaluate(expression):
                    return value
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            if time.monotonic() > end:
                raise AssertionError(f"not true within {timeout} s: {expression}")
            time.sleep(0.03)

    def set_size(self, width: int, height: int, scale: float = 1, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=mobile)  # fmt: skip

    def set_media(self, media: str = "", **features: str) -> None:
        """set_media("print"), set_media(prefers_color_scheme="dark")."""
        list_ = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=list_)

    def press(self, key: str, shift: bool = False) -> None:
        code, number = SPECIAL_KEYS.get(key, (f"Key{key.upper()}", ord(key.upper()[0])))
        if key.isdigit():
            code = f"Digit{key}"
        facts = {"key": key, "code": code, "windowsVirtualKeyCode": number,
                 "modifiers": 8 if shift else 0}  # fmt: skip
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **facts: object) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **facts)

    def click(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def drag(
        self, start: tuple[float, float], end: tuple[float, float], modifiers: int = 0
    ) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", clickCount=1, modifiers=modifiers)
        for i in range(1, 9):
            x, y = (start[k] + (end[k] - start[k]) * i / 8 for k in (0, 1))
            self.mouse("mouseMoved", x, y, button="left", buttons=1, modifiers=modifiers)
        self.mouse("mouseReleased", *end, button="left", clickCount=1, modifiers=modifiers)

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        list_ = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=list_)

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path
