#!/usr/bin/env python3
"""A video call between two Chromium windows, and what getStats() says of it.

Starts Xvfb, a signalling server on the loopback and one Chromium with a profile of its own.
Window a opens window b and calls it. Camera and microphone are Chromium's fake ones, the camera
fed from a file that ffmpeg draws. All of it runs without a GPU. All of it has ended when this
program ends.

After the warm-up every window reports once a second, one line each:

    call a: fps=30.0 rtt_ms=1.12 delay_ms=61.0 …

At the end one line sums up the measured time:

    total: freezes=0 freeze_s=0.00 dropped=2 …

As root it runs Chromium as the user nobody. Its sandbox needs user namespaces. Where that user gets
none, Chromium runs with --no-sandbox: the only page that it opens is call.html next to this file.

Exit status: 0 done, 1 the call failed, 77 something is not installed. The last line of standard
output says why: that is what an experiment shows of a failed command.
"""

import argparse
import contextlib
import ctypes
import glob
import http.server
import json
import os
import pwd
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SKIPPED = 77
SIDES = ("a", "b")
FPS = 30
# The camera's file begins again at its end.
CLIP_S = 4
CONNECT_S = 90
# No figures for so long: the call hangs.
SILENT_S = 60
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

FLAGS = [
    "--autoplay-policy=no-user-gesture-required",
    "--allow-loopback-in-peer-connection",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-popup-blocking",
    "--disable-renderer-backgrounding",
    "--disable-sync",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]


class Failed(Exception):
    """The call did not come about, or broke."""


class Server(http.server.ThreadingHTTPServer):
    """Passes descriptions from one window to the other, and collects figures."""

    daemon_threads = True

    def __init__(self, page):
        super().__init__(("127.0.0.1", 0), Handler)
        self.page = page
        self.mail = {side: queue.Queue() for side in SIDES}
        self.figures = queue.Queue()

    def handle_error(self, *_):
        """A window that is closed breaks its connection."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        side = path.rpartition("/")[2]
        if path == "/":
            self.answer(200, self.server.page, "text/html")
        elif path.startswith("/heard/") and side in SIDES:
            try:
                self.answer(200, self.server.mail[side].get(timeout=10))
            except queue.Empty:
                self.answer(204)
        else:
            self.answer(404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        what, _, side = self.path[1:].partition("/")
        if what == "say" and side in SIDES:
            self.server.mail[side].put(body)
        elif what == "figures" and side in SIDES:
            self.server.figures.put((side, json.loads(body)))
        elif what == "failed":
            self.server.figures.put(("failed", json.loads(body)))
        else:
            return self.answer(404)
        return self.answer(200)


# --- figures ---

def pick(report, type_of, kind=None):
    """The figures of this type, of audio or video; none before the first packet."""
    for one in report["figures"]:
        if one["type"] == type_of and one.get("kind") == kind:
            return one
    return {}


class Side:
    """The reports of one window. Counters of getStats() only grow: figures are differences."""

    def __init__(self, report):
        self.inbound = pick(report, "inbound-rtp", "video")
        self.outbound = pick(report, "outbound-rtp", "video")
        self.remote = pick(report, "remote-inbound-rtp", "video")
        self.pair = pick(report, "candidate-pair")
        self.shown = report["shown"]

    def talks(self):
        return self.inbound.get("framesDecoded", 0) > 0 and self.outbound.get("framesEncoded", 0) > 0


def more(now, before, key):
    return now.get(key, 0) - before.get(key, 0)


def per(now, before, sum_key, count_key, factor=1e3):
    """The mean of what was counted in between, in milliseconds; None of nothing."""
    count = more(now, before, count_key)
    return factor * more(now, before, sum_key) / count if count > 0 else None


def span_s(now, before):
    return max(more(now, before, "timestamp") / 1e3, 1e-3)


def second(now, before):
    """What a window's report says of the time since its last one."""
    took = span_s(now.inbound, before.inbound)
    shown = sorted(now.shown)
    figures = {
        "fps": more(now.inbound, before.inbound, "framesDecoded") / took,
        "kb_s": more(now.inbound, before.inbound, "bytesReceived") / took / 1e3,
        "rtt_ms": per(now.remote, before.remote, "totalRoundTripTime", "roundTripTimeMeasurements"),
        "ping_ms": per(now.pair, before.pair, "totalRoundTripTime", "responsesReceived"),
        "jitter_ms": per(now.inbound, before.inbound, "jitterBufferDelay", "jitterBufferEmittedCount"),
        "decode_ms": per(now.inbound, before.inbound, "totalDecodeTime", "framesDecoded"),
        "encode_ms": per(now.outbound, before.outbound, "totalEncodeTime", "framesEncoded"),
        "delay_ms": sum(shown) / len(shown) if shown else None,
        "longest_ms": shown[-1] if shown else None,
    }
    return {name: value for name, value in figures.items() if value is not None}


def total(first, last):
    """What both windows met in the whole measured time."""
    sides = [(last[side], first[side]) for side in SIDES]

    def both(key):
        return sum(more(now.inbound, before.inbound, key) for now, before in sides)

    took = sum(span_s(now.inbound, before.inbound) for now, before in sides)
    return {
        "frames_per_s": both("framesDecoded") / took,
        "freezes": both("freezeCount"),
        "freeze_s": both("totalFreezesDuration"),
        "dropped": both("framesDropped"),
        "lost_packets": both("packetsLost"),
        "received_mb": both("bytesReceived") / 1e6,
        "height": min(now.inbound.get("frameHeight", 0) for now, _ in sides),
        "span_s": took / len(sides),
    }


def words(figures):
    return " ".join(f"{name}={value:.2f}" for name, value in figures.items())


# --- programs ---

def needs():
    names = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "xvfb": ("Xvfb",), "ffmpeg": ("ffmpeg",)}
    found = {package: next(filter(None, map(shutil.which, tools)), None) for package, tools in names.items()}
    missing = [package for package, tool in found.items() if not tool]
    if missing:
        print(f"SKIPPED: not installed: {', '.join(missing)} (apt-get install {' '.join(missing)})")
        sys.exit(SKIPPED)
    return found


def account():
    """As whom Chromium runs: as nobody if this is root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def sandboxed(who):
    """Whether Chromium's sandbox gets the namespaces that it needs."""
    tried = subprocess.run(["unshare", "-U", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False, **who)
    return tried.returncode == 0


def dies_with_us():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command, who, log, env, **more_options):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=env, preexec_fn=dies_with_us,
                            **({"stdout": log} | more_options), **who)


def children():
    """All processes below this one."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path) as f:
            parents[int(path.split("/")[2])] = int(f.read().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def end_all():
    """Asks, then kills. Orphans become children of this process, so none is left."""
    for how, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 10.0)):
        end = time.monotonic() + patience
        asked = set()
        while (left := children()) and time.monotonic() < end:
            for pid in set(left) - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
            asked.update(left)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            time.sleep(0.02)


def draw(ffmpeg, path, width, height, who):
    """What the camera sees. A moving pattern with noise: an encoder has work with it."""
    source = f"testsrc2=size={width}x{height}:rate={FPS},noise=alls=10:allf=t"
    subprocess.run([ffmpeg, "-nostdin", "-v", "error", "-f", "lavfi", "-i", source, "-t", str(CLIP_S), "-threads", "1",
                    "-c:v", "mjpeg", "-q:v", "4", "-pix_fmt", "yuvj420p", path],
                   check=True, stdin=subprocess.DEVNULL, **who)


def display(xvfb, width, height, who, log, env):
    """The name of a new display, tall enough for the frame around a window."""
    screen = f"{2 * width}x{height + 120}x24"
    server = start([xvfb, "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", screen], who, log, env,
                   stdout=subprocess.PIPE)
    number = server.stdout.readline().decode().strip()
    if not number:
        raise Failed("Xvfb did not start")
    return f":{number}"


def forget(folder):
    """Drops the files of a folder from the page cache: the group that reads them next pays.

    Pages that a running program has mapped stay.
    """
    for path in glob.glob(os.path.join(folder, "**"), recursive=True):
        if os.path.isfile(path):
            with open(path, "rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def browse(tools, options, server, folder, who, log):
    env = dict(os.environ, HOME=folder, XDG_RUNTIME_DIR=folder, TMPDIR=folder)
    env.pop("DBUS_SESSION_BUS_ADDRESS", None)
    clip = os.path.join(folder, "camera.mjpeg")
    draw(tools["ffmpeg"], clip, options.width, options.height, who)
    env["DISPLAY"] = display(tools["xvfb"], options.width, options.height, who, log, env)
    sandbox = [] if sandboxed(who) else ["--no-sandbox"]
    if sandbox:
        print("note: no user namespaces for Chromium's sandbox: it runs with --no-sandbox", flush=True)
    url = f"http://127.0.0.1:{server.server_address[1]}/?side=a"
    command = [tools["chromium"], *FLAGS, *sandbox, f"--user-data-dir={folder}/profile",
               f"--use-file-for-fake-video-capture={clip}", "--window-position=0,0",
               f"--window-size={options.width},{options.height + 100}", f"--app={url}"]
    return start(command, who, log, env)


# --- the call ---

def reports(server, browser, patience):
    """The next report; an error if the call hangs, has failed or its browser has ended."""
    end = time.monotonic() + patience
    while True:
        try:
            side, report = server.figures.get(timeout=0.5)
        except queue.Empty:
            if browser.poll() is not None:
                raise Failed(f"Chromium ended with status {browser.returncode}") from None
            if time.monotonic() > end:
                raise Failed(f"no figures for {patience} s") from None
            continue
        if side == "failed":
            raise Failed(report)
        return side, Side(report)


def connect(server, browser):
    """The first report of each window in which both send and see the other."""
    begun, last = time.monotonic(), {}
    while len(last) < len(SIDES):
        side, report = reports(server, browser, CONNECT_S)
        if report.talks():
            last[side] = report
        elif time.monotonic() - begun > CONNECT_S:
            raise Failed(f"not connected within {CONNECT_S} s")
    return last


def measure(server, browser, options):
    last = connect(server, browser)
    print("connected", flush=True)
    until = time.monotonic() + options.warmup
    while time.monotonic() < until:
        side, report = reports(server, browser, SILENT_S)
        last[side] = report
    first = dict(last)
    until = time.monotonic() + options.duration
    while time.monotonic() < until:
        side, report = reports(server, browser, SILENT_S)
        print(f"call {side}: {words(second(report, last[side]))}", flush=True)
        last[side] = report
    print(f"total: {words(total(first, last))}", flush=True)


def stopped(*_):
    raise SystemExit(1)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--warmup", type=float, default=8, help="seconds before figures count")
    arguments.add_argument("--duration", type=float, default=20, help="seconds that are measured")
    arguments.add_argument("--width", type=int, default=640)
    arguments.add_argument("--height", type=int, default=360)
    arguments.add_argument("--cold", metavar="DIR", help="drop the files of this folder from the page cache first")
    arguments.add_argument("--log", default=os.devnull, help="where Chromium's own messages go")
    options = arguments.parse_args()
    tools = needs()
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(how, stopped)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    who = account()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "call.html")) as f:
        page = f.read()
    for word, value in (("WIDTH", options.width), ("HEIGHT", options.height), ("FPS", FPS)):
        page = page.replace(word, str(value))
    if options.cold:
        forget(options.cold)
    server = Server(page.encode())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tempfile.mkdtemp(prefix="quell-call.")
    try:
        if who:
            os.chown(folder, who["user"], who["group"])
        with open(options.log, "ab") as log:
            measure(server, browse(tools, options, server, folder, who, log), options)
    except Failed as why:
        print(f"the call failed: {why}", flush=True)
        return 1
    finally:
        for how in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(how, signal.SIG_IGN)
        end_all()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
