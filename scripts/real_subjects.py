"""The programs that scripts/real.py measures, each with its client, and what it needs to run and watch programs."""

import contextlib
import csv
import glob
import io
import json
import math
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

SETTLE_S = 1.0
MEASURE_S = 3
REQUESTS = 200_000  # of a closed-loop cell: 1.3 s alone
CLIENTS = 20
TRANSACTIONS = 150  # of an sqlite3 cell, 20,000 inserts and one commit each
PERIOD = "5.137ms"  # of the periodic program: no multiple of a tick or of a regulator's period, so that no phase is kept

CPUS = sorted(os.sched_getaffinity(0))
CLIENT_CPU, SERVER_CPU = CPUS[0], CPUS[-1]


class Failed(Exception):
    """A program failed, or did not do what it was to do."""


def tool(name):
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))), None)
    if not found:
        raise Failed(f"{name} is not installed")
    return found


def run(command, timeout=120, **options):
    """Its output; anything but success is a failure."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{command[0]}: not done after {timeout} s") from None
    if done.returncode != 0:
        raise Failed(f"{command[0]}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def on_client_cpu(command):
    return ["taskset", "-c", str(CLIENT_CPU), *command]


def wait_for(what, test, timeout=20.0, process=None):
    end = time.monotonic() + timeout
    while not test():
        if process is not None and process.poll() is not None:
            raise Failed(f"{what}: the process ended with {process.returncode}")
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {timeout:.0f} s")
        time.sleep(0.05)


def stop(process, how=signal.SIGTERM, timeout=30):
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failed(f"{process.args[0]}: did not end within {timeout} s") from None


def percentile(values, p):
    values = sorted(values)
    at = p / 100 * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def latencies(ms):
    return {"p50_ms": percentile(ms, 50), "p99_ms": percentile(ms, 99), "longest_ms": max(ms)}


# --- what /proc says ---

def stat(path):
    """comm, parent and CPU ticks of a task; None if it has gone."""
    try:
        with open(f"{path}/stat") as f:
            text = f.read()
    except OSError:
        return None
    comm, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return comm, int(rest[1]), int(rest[11]) + int(rest[12])


def tree(root):
    """The process and its descendants."""
    parents = {int(p[6:]): s[1] for p in glob.glob("/proc/[0-9]*") if (s := stat(p))}
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def cpu_s(pids):
    ticks = sum(s[2] for pid in pids if (s := stat(f"/proc/{pid}")))
    return ticks / os.sysconf("SC_CLK_TCK")


def spun_s():
    """CPU time of Quell's brake: of tasks whose name begins with quell/."""
    tasks = (stat(path) for path in glob.glob("/proc/[0-9]*/task/[0-9]*"))
    ticks = sum(s[2] for s in tasks if s and s[0].startswith("quell/"))
    return ticks / os.sysconf("SC_CLK_TCK")


def in_our_cgroup(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup") as f:
        text = f.read()
        return "/quell.slice/" in text or "/quell-" in text
    return False


# --- subjects: start(stack), match, warm(seconds), measure() ---

class Redis:
    """redis-server with redis-benchmark, or with the open-loop client at a share of the peak."""

    def __init__(self, bench, share=None):
        self.bench, self.share = bench, share

    def start(self, stack):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        server = [tool("redis-server"), "--port", self.port, "--save", "", "--appendonly", "no"]
        process = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(stop, process)
        self.match = f'exe = "{server[0]}"'
        answers = ["redis-cli", "-p", self.port, "ping"]
        wait_for("redis-server", lambda: subprocess.run(answers, capture_output=True).returncode == 0, process=process)
        run(["redis-cli", "-p", self.port, "set", "key:__rand_int__", "xxx"])

    def closed(self, requests):
        return on_client_cpu([tool("redis-benchmark"), "-p", self.port, "-t", "get", "-n", str(requests), "-c", str(CLIENTS),
                              "--csv"])

    def open(self, seconds):
        rate = str(round(self.share * self.bench.setup["peak_per_s"]))
        return [self.bench.quell, "bench", "open-loop", "--connect", f"127.0.0.1:{self.port}", "--rate", rate,
                "--connections", str(CLIENTS), "--duration", f"{seconds}s", "--cpu", str(CLIENT_CPU), "--json"]

    def warm(self, seconds):
        if self.share:
            return run(self.open(seconds))
        load = subprocess.Popen(self.closed(10**8), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        stop(load)

    def measure(self):
        if self.share:
            r = json.loads(run(self.open(MEASURE_S)))
            ms = {name: r[key] / 1e6 for name, key in
                  (("p50_ms", "p50_ns"), ("p99_ms", "p99_ns"), ("p999_ms", "p999_ns"), ("longest_ms", "max_ns"))}
            return ms | {"throughput": r["achieved_per_s"], "offered": r["offered_per_s"], "unanswered": r["unanswered"]}
        rows = list(csv.DictReader(io.StringIO(run(self.closed(REQUESTS)))))
        if len(rows) != 1 or rows[0]["test"] != "GET":
            raise Failed(f"redis-benchmark: not one row of GET: {rows}")
        ms = {f"{name}_ms": float(rows[0][f"{key}_latency_ms"]) for name, key in
              (("p50", "p50"), ("p99", "p99"), ("longest", "max"))}
        return ms | {"throughput": float(rows[0]["rps"])}


class Gated:
    """A program that runs once. It waits behind a gate, so that Quell has its process before it begins."""

    def __init__(self, bench, name):
        self.bench, self.name = bench, name

    def start(self, stack):
        self.dir = stack.enter_context(tempfile.TemporaryDirectory(dir=self.bench.work))
        self.output = os.path.join(self.dir, "output")
        if self.name == "ffmpeg":
            what = "ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=640x360:rate=30 -t 14 -threads 1 -c:v libx264 -f null -"
            warm = what
        else:
            with open(os.path.join(self.dir, "sql"), "w") as f:
                f.write(".timer on\nCREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);\n")
                f.write("BEGIN;\nWITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 20000) "
                        "INSERT INTO t(b) SELECT 'value ' || i FROM c;\nCOMMIT;\n" * TRANSACTIONS)
            warm, what = (f"sqlite3 -bail {db} <sql" for db in ("warm.db", "measured.db"))
        tool(self.name)
        gate = f"read _; timeout {SETTLE_S} {warm} >/dev/null; echo warm; read _; exec {what}"
        with open(self.output, "w") as out:
            self.gate = subprocess.Popen(["sh", "-c", gate], cwd=self.dir, stdin=subprocess.PIPE, stdout=out,
                                         stderr=subprocess.STDOUT, text=True)
        stack.callback(stop, self.gate)
        self.match = f"pid = {self.gate.pid}"

    def go_on(self):
        self.gate.stdin.write("\n")
        self.gate.stdin.flush()

    def text(self):
        with open(self.output) as f:
            return f.read()

    def warm(self, _):
        self.go_on()
        wait_for(f"{self.name}, unmeasured", lambda: "warm" in self.text(), process=self.gate)

    def measure(self):
        begin = time.monotonic()
        self.go_on()
        try:
            status = self.gate.wait(120)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name}: not done after 120 s") from None
        took = time.monotonic() - begin
        said = self.text()
        if status != 0 or "rror" in said:
            raise Failed(f"{self.name}: exit {status}: {said[-500:]}")
        if self.name == "ffmpeg":
            return {"run_s": took}
        statements = [float(s) for s in re.findall(r"Run Time: real ([\d.]+)", said)][1:]
        if len(statements) != 3 * TRANSACTIONS:
            raise Failed(f"sqlite3: {len(statements)} statements of {3 * TRANSACTIONS}")
        return latencies([sum(statements[i : i + 3]) * 1e3 for i in range(0, len(statements), 3)]) | {"run_s": took}


class Postgres:
    """postgres with pgbench (its default transaction, four clients)."""

    def __init__(self, bench):
        self.bench, self.filled = bench, False

    def start(self, stack):
        self.match = f'exe = "{os.path.realpath(tool("postgres"))}"'
        # It refuses to be root.
        user = next(u for u in ("postgres", "nobody") if any(p.pw_name == u for p in pwd.getpwall()))
        account = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        self.data = os.path.join(self.bench.work, "pg")
        if not os.path.exists(self.data):
            os.mkdir(self.data)
            shutil.chown(self.data, user)
            run([tool("initdb"), "-D", self.data, "-U", "postgres", "-A", "trust"], cwd="/", **account)
        with open(os.path.join(self.bench.work, "pg.log"), "a") as log:
            command = [tool("postgres"), "-D", self.data, "-k", self.data, "-c", "listen_addresses="]
            process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, **account)
        stack.callback(stop, process, signal.SIGINT)
        ready = ["psql", "-h", self.data, "-U", "postgres", "-c", "select 1"]
        wait_for("postgres", lambda: subprocess.run(ready, capture_output=True).returncode == 0, process=process)
        if not self.filled:
            run([tool("pgbench"), "-h", self.data, "-U", "postgres", "-i", "-q", "-s", "10", "postgres"])
            self.filled = True

    def client(self, seconds, *more):
        with tempfile.TemporaryDirectory(dir=self.bench.work) as log:
            client = [tool("pgbench"), "-h", self.data, "-U", "postgres", "-n", "-c", "4", "-l",
                      "-T", str(math.ceil(seconds)), "postgres"]
            said = run(on_client_cpu(client), cwd=log)
            lines = [line.split() for name in glob.glob(f"{log}/pgbench_log*") for line in open(name)]
            return said, [int(line[2]) / 1e3 for line in lines]

    def warm(self, seconds):
        self.client(seconds)

    def measure(self):
        said, ms = self.client(MEASURE_S)
        rate = re.search(r"tps = ([\d.]+)", said)
        if not rate or not ms:
            raise Failed(f"pgbench: no figures: {said}")
        return latencies(ms) | {"throughput": float(rate[1])}


class Periodic:
    """An ordinary task that works for 200 us every 5.137 ms, on the neighbour's CPU. Latency: from the release to its running."""

    def __init__(self, bench):
        self.bench, self.match = bench, None

    def start(self, _):
        pass

    def once(self, passes, seconds):
        return json.loads(run([self.bench.quell, "bench", "periodic", "--cpu", str(CLIENT_CPU), "--period", PERIOD, "--passes",
                               str(passes), "--warmup", "200ms", "--duration", f"{seconds}s", "--json"]))["metrics"]

    def warm(self, seconds):
        self.once(self.bench.setup["passes"], seconds)

    def measure(self):
        m = self.once(self.bench.setup["passes"], MEASURE_S)
        wakeup = {f"{name}_ms": m["wakeup_us"][key] / 1e3 for name, key in (("p50", "p50"), ("p99", "p99"), ("longest", "max"))}
        return wakeup | {"response_p99_ms": m["response_us"]["p99"] / 1e3, "missed": m["misses"]["mean"]}


