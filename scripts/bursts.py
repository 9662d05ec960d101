#!/usr/bin/env python3
"""Profiles programs that are periodic and programs that are not, and judges the periods found.

  scripts/bursts.py --quell target/release/quell --out bursts.jsonl [--tries 3] [--only REGEX]
  scripts/bursts.py --report bursts.jsonl
  scripts/bursts.py --traces bursts.jsonl crates/record/tests/demand

Each try is a line of JSON in the file given by --out, with the series. A run that is started again
with the same file does what is missing. --report judges the lines and prints Markdown. --traces
writes one try of some programs for the tests of the library.

A try is repeated, and does not count if that goes on:
- if a thread of this session woke late by over 100 ms in sum: there was no CPU for the program either;
- of a program without a period, if another run of Quell was on the machine. It holds back programs
  that it does not know, in periods of its own.

The truth: loops of this script print the mean distance of their own beginnings. Players and the like
have the period that they were asked for.

Programs run with their session at nice -15. Start this script so, too: echo -15 > /proc/self/autogroup.
Needs root, a quiet machine, and: gcc, ffmpeg, mpv, gstreamer1.0-tools with plugins-base and -good,
rt-tests, procps, redis-server, redis-tools, sqlite3, stress-ng, openssl.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SPAN_S = 6
LOOPS_S = 5.5  # so that a loop ends before it is ended, and prints
WEIGHT = -15  # the nice level of the session of a program, against what else runs on the machine
LATE_MS = 5
STALLED_MS = 100
WITHIN = 0.02  # of the true period

# A loop of PERIOD ms that computes for WORK ms. "relative" sleeps for a span after its work, so its
# period is longer than asked for and moves with the work. JITTER is the largest delay of a
# beginning, and MISSING the chance that a turn is left out, both as parts of one.
LOOP_C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
static double even(void) { return rand() / (RAND_MAX + 1.0); }
static void until(double ms) {
    struct timespec t = {(long)(ms / 1e3), 0};
    t.tv_nsec = (long)((ms - t.tv_sec * 1e3) * 1e6);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}
int main(int n, char **arg) {
    double period = atof(arg[1]), work = atof(arg[2]), seconds = atof(arg[3]);
    int relative = n > 4 && !strcmp(arg[4], "relative");
    double jitter = n > 5 ? atof(arg[5]) : 0, missing = n > 6 ? atof(arg[6]) : 0;
    static char block[1 << 20], copy[1 << 20];
    double begin = now(), due = begin, last = begin;
    long turns = 0;
    while (due - begin < seconds * 1e3) {
        until(due + jitter * period * even());
        double at = now();
        if (even() >= missing)
            while (now() < at + work) memcpy(copy, block, 1 << 14), block[0]++;
        last = due;
        turns++;
        due = relative ? now() + period : due + period;
    }
    printf("period_ms=%.4f\n", (last - begin) / (turns - 1));
    return 0;
}
"""

# A game's loop: input, physics, a picture in memory; work in ms.
GAME = """
import sys, time
period, work, seconds = float(sys.argv[1]) / 1e3, float(sys.argv[2]) / 1e3, float(sys.argv[3])
begin = due = time.monotonic()
bodies = [(0.1 * n, 1.0) for n in range(50)]
turns = 0
while due - begin < seconds:
    end = time.monotonic() + work
    while time.monotonic() < end:
        bodies = [(x + v * period, v if 0 < x < 100 else -v) for x, v in bodies]
    due += period
    turns += 1
    time.sleep(max(0.0, due - time.monotonic()))
print(f"period_ms={1e3 * period:.4f}")
"""

TIMERS = """
import asyncio, json, sys, time
period, seconds = float(sys.argv[1]) / 1e3, float(sys.argv[2])
data = {str(n): list(range(20)) for n in range(int(sys.argv[3]))}
at = []
async def turn():
    loop = asyncio.get_running_loop()
    begin = due = loop.time()
    while due - begin < seconds:
        at.append(due)
        json.loads(json.dumps(data))
        due += period
        await asyncio.sleep(due - loop.time())
asyncio.run(turn())
print(f"period_ms={1e3 * (at[-1] - at[0]) / (len(at) - 1):.4f}")
"""

RELATIVE = """
import sys, time, zlib
pause, seconds = float(sys.argv[1]) / 1e3, float(sys.argv[2])
data = bytes(range(256)) * int(sys.argv[3])
begin, at = time.monotonic(), []
while time.monotonic() - begin < seconds:
    at.append(time.monotonic())
    zlib.compress(data)
    time.sleep(pause)
print(f"period_ms={1e3 * (at[-1] - at[0]) / (len(at) - 1):.4f}")
"""

POISSON = """
import random, sys, time, zlib
mean, seconds = float(sys.argv[1]) / 1e3, float(sys.argv[2])
data = bytes(range(256)) * int(sys.argv[3])
begin = time.monotonic()
while time.monotonic() - begin < seconds:
    zlib.compress(data)
    time.sleep(random.expovariate(1 / mean))
"""

REDIS_CLIENT = """
import socket, sys, time
port, period, seconds = int(sys.argv[1]), float(sys.argv[2]) / 1e3, float(sys.argv[3])
s = socket.create_connection(("127.0.0.1", port))
batch = b"".join(b"SET key:%d %s\\r\\n" % (n, b"v" * 64) for n in range(int(sys.argv[4])))
begin = due = time.monotonic()
while due - begin < seconds:
    s.sendall(batch)
    want = int(sys.argv[4]) * 5
    while want > 0:
        want -= len(s.recv(1 << 16))
    due += period
    time.sleep(max(0.0, due - time.monotonic()))
"""


class Tools:
    """Files that the programs need, in a directory that is removed afterwards."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="bursts-")
        source = self.path("loop.c", LOOP_C)
        subprocess.run(["gcc", "-O1", "-o", self.path("loop"), source], check=True)
        for name, text in (("game", GAME), ("timers", TIMERS), ("relative", RELATIVE),
                           ("poisson", POISSON), ("client", REDIS_CLIENT)):
            self.path(f"{name}.py", text)
        for rate in (24, 30, 60):
            self.encode(f"{rate}.mp4", rate, "640x360")
        self.lines()
        self.sources()

    def path(self, name, text=None):
        path = os.path.join(self.dir, name)
        if text is not None:
            with open(path, "w", encoding="utf8") as file:
                file.write(text)
        return path

    def encode(self, name, rate, size):
        make = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", f"testsrc2=rate={rate}:size={size}",
                "-t", str(SPAN_S + 6), "-c:v", "mpeg4", "-q:v", "5", self.path(name)]
        subprocess.run(make, check=True)

    def lines(self):
        text = "".join(f"{(n * 7919) % 1000003} some words {n}\n" for n in range(600_000))
        self.path("lines.txt", text)
        sql = ["CREATE TABLE t(a INTEGER, b TEXT);", "BEGIN;"]
        sql += [f"INSERT INTO t VALUES({n * 7919 % 100003}, 'text {n}');" for n in range(200_000)]
        sql += ["COMMIT;", "CREATE INDEX i ON t(a);"]
        sql += [f"SELECT count(*) FROM t WHERE a % {n} = 1;" for n in range(2, 600)]
        self.path("batch.sql", "\n".join(sql))

    def sources(self):
        body = "".join(f"int f{n}(int a) {{ int s = 0; for (int i = 0; i < a; i++) s += i * {n} ^ a; return s; }}\n"
                       for n in range(400))
        lines = body.splitlines(keepends=True)
        for n in range(40):  # of different length: equal ones would be periodic
            part = "".join(lines[: 10 + n * 37 % 390])
            self.path(f"unit{n}.c", "#include <stdio.h>\n#include <stdlib.h>\n" + part)

    def remove(self):
        shutil.rmtree(self.dir)


def python(tools, name, *args):
    return [sys.executable, tools.path(f"{name}.py"), *map(str, args)]


def loop(tools, period, work, *more):
    return [tools.path("loop"), str(period), str(work), str(LOOPS_S), *map(str, more)]


def gst(*parts):
    return ["gst-launch-1.0", "-q", *" ! ".join(parts).split()]


def video(rate, size, more=()):
    caps = f"video/x-raw,framerate={rate},width={size[0]},height={size[1]}"
    return gst("videotestsrc is-live=true", caps, *more, "fakesink sync=true")


def mpv(tools, name):
    return ["mpv", "--no-config", "--really-quiet", "--vo=null", "--ao=null", "--untimed=no", tools.path(name)]


def ffmpeg(rate, codec, size="640x360"):
    return ["ffmpeg", "-v", "error", "-re", "-f", "lavfi", "-i", f"testsrc2=rate={rate}:size={size}",
            "-t", "60", "-c:v", codec, "-f", "null", "-"]


def periodic(t):
    """Name, period in ms (None: the program prints it), command."""
    return [
        ("loop 30 Hz, 0.7 ms", None, loop(t, 1e3 / 30, 0.7)),
        ("loop 30 Hz, 2 ms", None, loop(t, 1e3 / 30, 2)),
        ("loop 60 Hz, 0.7 ms", None, loop(t, 1e3 / 60, 0.7)),
        ("loop 100 Hz, 0.5 ms", None, loop(t, 10, 0.5)),
        ("loop 200 Hz, 0.5 ms", None, loop(t, 5, 0.5)),
        ("loop 2 Hz, 5 ms", None, loop(t, 500, 5)),
        ("loop 12.5 Hz, 4 ms, jitter 0.1, 1 in 10 missing", None, loop(t, 80, 4, "absolute", 0.1, 0.1)),
        ("game 60 Hz, 6 ms", None, python(t, "game", 1e3 / 60, 6, LOOPS_S)),
        ("game 30 Hz, 20 ms", None, python(t, "game", 1e3 / 30, 20, LOOPS_S)),
        ("asyncio timer 50 ms", None, python(t, "timers", 50, LOOPS_S, 400)),
        ("sleep 20 ms after zlib", None, python(t, "relative", 20, LOOPS_S, 500)),
        ("cyclictest 10 ms", 10.0, ["cyclictest", "-q", "-t1", "-i", "10000", "-D", str(SPAN_S)]),
        ("mpv 24 fps", 1e3 / 24, mpv(t, "24.mp4")),
        ("mpv 30 fps", 1e3 / 30, mpv(t, "30.mp4")),
        ("mpv 60 fps", 1e3 / 60, mpv(t, "60.mp4")),
        ("ffmpeg -re 25 fps mpeg4", 40.0, ffmpeg(25, "mpeg4")),
        ("ffmpeg -re 50 fps rawvideo", 20.0, ffmpeg(50, "rawvideo")),
        ("gst video 29.97 fps", 1001 / 30, video("30000/1001", (640, 480))),
        ("gst video 50 fps, scaled", 20.0, video("50/1", (640, 480), ("videoscale", "video/x-raw,width=320"))),
        ("gst audio, 20 ms buffers", 20.0,
         gst("audiotestsrc is-live=true samplesperbuffer=960", "audio/x-raw,rate=48000", "fakesink sync=true")),
        ("redis, a batch each 40 ms", 40.0, None),
        ("top each 0.3 s", 300.0, ["top", "-b", "-d", "0.3"]),
    ]


def aperiodic(t):
    """Name, command."""
    sh = lambda text: ["sh", "-c", text]
    return [
        ("gcc", sh(f"cd {t.dir} && for u in unit*.c; do gcc -O2 -c -o /dev/null $u; done")),
        ("gzip", sh(f"cd {t.dir} && for n in 1 2 3; do gzip -9 -c lines.txt; done > /dev/null")),
        ("sort", sh(f"cd {t.dir} && for n in 1 2 3 4 5 6 7 8; do sort -n lines.txt; sort lines.txt; done > /dev/null")),
        ("stress-ng cpu", ["stress-ng", "--cpu", "1", "--timeout", str(SPAN_S)]),
        ("sqlite3 batch", sh(f"sqlite3 {t.path('batch.db')} < {t.path('batch.sql')} > /dev/null; rm {t.path('batch.db')}")),
        ("redis-server under redis-benchmark", None),
        ("find and grep", sh("find /usr -xdev -type f | head -60000 | xargs grep -l nothing-of-it > /dev/null")),
        ("openssl speed", ["openssl", "speed", "-seconds", "1", "sha256"]),
        ("sleeps of 30 ms, Poisson", python(t, "poisson", 30, LOOPS_S, 500)),
        ("dd, a steady stream", sh("dd if=/dev/zero of=/dev/null bs=64k count=100000000 2> /dev/null")),
    ]


class Redis:
    """A server with its client, as a context."""

    def __init__(self, client):
        self.client = client
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]

    def __enter__(self):
        null = subprocess.DEVNULL
        self.server = subprocess.Popen(["redis-server", "--port", str(self.port), "--save", ""], stdout=null)
        for _ in range(100):
            time.sleep(0.05)
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
        self.load = subprocess.Popen(self.client(self.port), stdout=null, stderr=null)
        time.sleep(0.5)
        return self.server.pid

    def __exit__(self, *_):
        for process in (self.load, self.server):
            process.send_signal(signal.SIGTERM)
            process.wait()


def profile(quell, what):
    """Runs `quell profile` and returns its JSON and what the program wrote."""
    with tempfile.TemporaryDirectory() as kept:
        out = os.path.join(kept, "profile.json")
        command = [quell, "profile", "--for", f"{SPAN_S}s", "--json", "--out", out, *what]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout), done.stderr


def attempt(quell, tools, name, period, command):
    if command:
        # A program starts in a session of its own, so the weight of ours does not count for it.
        weight = f'echo {WEIGHT} > /proc/self/autogroup; exec "$@"'
        found, wrote = profile(quell, ["--", "sh", "-c", weight, "sh", *command])
    else:
        client = (lambda port: python(tools, "client", port, period, 60, 500)) if period else (
            lambda port: ["redis-benchmark", "-p", str(port), "-n", "100000000", "-q", "-t", "set,get"])
        with Redis(client) as pid:
            found, wrote = profile(quell, ["--pid", str(pid)])
    told = re.search(r"period_ms=([\d.]+)", wrote)
    return {
        "name": name,
        "period_ms": float(told.group(1)) if told else period,
        "burst": found.get("burst"),
        "unread_bins": found.get("sampler", {}).get("unread_bins"),
        "series": [s["per_bin"] for s in found["series"]],
    }


def load(path):
    try:
        with open(path, encoding="utf8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def sessions():
    """Other runs of Quell, which hold programs that they do not know."""
    try:
        return [entry.name for entry in os.scandir("/run/quell") if entry.is_dir() and entry.name != "client"]
    except FileNotFoundError:
        return []


class Canary:
    """A thread of this session that wakes 100 times a second and adds up how late it is, in ms."""

    def __enter__(self):
        self.late, self.over = 0.0, False
        self.thread = threading.Thread(target=self.wake)
        self.thread.start()
        return self

    def wake(self):
        while not self.over:
            due = time.monotonic() + 0.01
            time.sleep(0.01)
            late = 1e3 * (time.monotonic() - due)
            self.late += late if late > LATE_MS else 0.0

    def __exit__(self, *_):
        self.over = True
        self.thread.join()


def undisturbed(tries, is_periodic, run):
    """The first result of `run` in which neither another Quell nor a lack of CPU disturbed it, or the last."""
    for _ in range(tries):
        before = sessions()
        with Canary() as canary:
            result = run()
        result |= {"late_ms": canary.late, "alone": not before and not sessions()}
        if counts(result | {"periodic": is_periodic}):
            break
    return result


def measure(args):
    tools = Tools()
    try:
        jobs = [(*job, True) for job in periodic(tools)]
        jobs += [(name, None, command, False) for name, command in aperiodic(tools)]
        jobs = [job for job in jobs if re.search(args.only, job[0])]
        done = [(line["name"], line["try"]) for line in load(args.out)]
        for turn in range(args.tries):
            for name, period, command, is_periodic in jobs:
                if (name, turn) in done:
                    continue
                run = lambda: attempt(args.quell, tools, name, period, command)
                line = undisturbed(args.repeat, is_periodic, run)
                line |= {"try": turn, "periodic": is_periodic, "load": os.getloadavg()[0]}
                with open(args.out, "a", encoding="utf8") as out:
                    out.write(json.dumps(line) + "\n")
                burst = line["burst"]
                print(name, turn, line["period_ms"], burst and round(burst["period_ms"], 3), line["alone"],
                      round(line["late_ms"]), flush=True)
    finally:
        tools.remove()


def counts(line):
    """Another Quell makes a period harder to find, but gives one to a program that has none."""
    return line["late_ms"] <= STALLED_MS and (line["alone"] or line["periodic"])


def right(line):
    found = line["burst"] and line["burst"]["period_ms"]
    if not line["periodic"]:
        return found is None
    return found is not None and abs(found / line["period_ms"] - 1) <= WITHIN


def report(lines):
    counted = [line for line in lines if counts(line)]
    print(f"{len(lines) - len(counted)} of {len(lines)} tries were disturbed and do not count:")
    for line in lines:
        if line not in counted:
            print(f"- {line['name']}, late by {line['late_ms']:.0f} ms, {'right' if right(line) else 'wrong'}")
    lines = counted
    for is_periodic in (True, False):
        of = [line for line in lines if line["periodic"] == is_periodic]
        good = sum(map(right, of))
        print(f"\n{'Periodic' if is_periodic else 'Not periodic'}: right in {good} of {len(of)} tries.\n")
        print("| program | period, ms | CPUs | found, ms | right |\n|---|---|---|---|---|")
        for name in dict.fromkeys(line["name"] for line in of):
            tries = [line for line in of if line["name"] == name]
            true = f"{tries[0]['period_ms']:.3f}" if is_periodic else "–"
            share = sum(map(sum, (s for line in tries for s in line["series"])))
            cpus = share / 1e6 / sum(len(line["series"][0]) for line in tries)
            found = ", ".join(f"{line['burst']['period_ms']:.3f}" if line["burst"] else "none" for line in tries)
            print(f"| {name} | {true} | {cpus:.3f} | {found} | {sum(map(right, tries))} of {len(tries)} |")


# The programs whose first try is a test of the library, by the trace's name.
TRACES = {
    "loop-30": "loop 30 Hz, 0.7 ms", "mpv-24": "mpv 24 fps", "mpv-60": "mpv 60 fps",
    "gst-2997": "gst video 29.97 fps", "ffmpeg-25": "ffmpeg -re 25 fps mpeg4", "redis-40": "redis, a batch each 40 ms",
    "sleep-zlib": "sleep 20 ms after zlib", "gst-audio": "gst audio, 20 ms buffers", "gcc": "gcc",
    "openssl": "openssl speed", "sqlite": "sqlite3 batch", "poisson": "sleeps of 30 ms, Poisson", "dd": "dd, a steady stream",
    "redis-benchmark": "redis-server under redis-benchmark",
}
TRACE_MS = 2500
TRACE_UNIT_NS = 10_000


def traces(lines, directory):
    """The CPU time of every millisecond in units of 10 us; "z9" are nine without any."""
    os.makedirs(directory, exist_ok=True)
    for trace, name in TRACES.items():
        line = next((line for line in lines if line["name"] == name and counts(line)), None)
        if not line:
            continue
        sums = [(sum(bins) + TRACE_UNIT_NS // 2) // TRACE_UNIT_NS for bins in zip(*line["series"])]
        words, zeros = [], 0
        for value in [*sums[:TRACE_MS], None]:
            if value == 0:
                zeros += 1
                continue
            if zeros:
                words.append(f"z{zeros}")
                zeros = 0
            if value is not None:
                words.append(str(value))
        period = f"{line['period_ms']:.4f}" if line["periodic"] else "none"
        text = "\n".join(" ".join(words[n : n + 24]) for n in range(0, len(words), 24))
        with open(os.path.join(directory, f"{trace}.txt"), "w", encoding="utf8") as file:
            file.write(f"# {name}\n# period_ms {period}\n{text}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quell", default="target/release/quell")
    parser.add_argument("--out", default="bursts.jsonl")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", default="", help="programs whose name matches")
    parser.add_argument("--repeat", type=int, default=2, help="so often at most while the machine disturbs a try")
    parser.add_argument("--report", metavar="FILE")
    parser.add_argument("--traces", nargs=2, metavar=("FILE", "DIRECTORY"))
    args = parser.parse_args()
    if args.report:
        report(load(args.report))
    elif args.traces:
        traces(load(args.traces[0]), args.traces[1])
    else:
        measure(args)


if __name__ == "__main__":
    main()
