#!/usr/bin/env python3
"""Compare proxies in front of a mock model API, interleaved and pinned, per core.

    make && ./run.py --targets targets.json --rounds 3 --out results.json --md results.md

Needs Linux, gcc, Python 3.8+; standard library only.  See README.md for the target format.

`upstream` and `load` share one CPU, the target under test has another to itself.  In each
round every scenario is run against every target, one right after the other, and the order of
targets is rotated between rounds; the tables show medians over rounds, and ratios are medians
of the ratios within one round, so a machine that is slow for a minute slows both sides.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

KIT = os.path.dirname(os.path.abspath(__file__))
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

# name: (what it is, load arguments, upstream defaults).  {d} is --seconds.
SCENARIOS = {
    "lat-small": (
        "1 connection, small body: latency of one call",
        "--mode unary --conns 1 --duration {d} --warmup 0.3",
        {},
    ),
    "unary-small": ("16 connections, small body", "--mode unary --conns 16 --duration {d} --warmup 0.5", {}),
    "unary-200k": (
        "8 connections, 200 kB history",
        "--mode unary --conns 8 --size-kb 200 --duration {d} --warmup 0.5",
        {},
    ),
    "unary-2m": (
        "4 connections, 2 MB history",
        "--mode unary --conns 4 --size-kb 2000 --duration {d} --warmup 0.5",
        {},
    ),
    "streams-100": (
        "100 concurrent streams, 200 chunks 20 ms apart",
        "--mode stream --conns 100 --requests 100 --ramp-ms 1000 --expect-chunks 200",
        {"chunks": 200, "delay-us": 20000},
    ),
    "streams-500": (
        "500 concurrent streams, 200 chunks 20 ms apart",
        "--mode stream --conns 500 --requests 500 --ramp-ms 1000 --expect-chunks 200",
        {"chunks": 200, "delay-us": 20000},
    ),
    "stream-max": (
        "8 streams at once, 2000 chunks each, no delay",
        "--mode stream --conns 8 --duration {d} --warmup 0.5 --expect-chunks 2000",
        {"chunks": 2000, "delay-us": 0},
    ),
    "mixed": (
        "100 paced streams while 2 agent loops (50 ms between calls) resend histories of 0 -> 4 MB",
        "--mode stream --conns 100 --requests 100 --ramp-ms 1000 --expect-chunks 200",
        {"chunks": 200, "delay-us": 20000},
        "--mode growing --steps 40 --grow-bytes 100000 --conns 2 --loops 1000 --think-ms 50 --max-s 5.2",
    ),
    "grow-append": (
        "one agent loop, history 0 -> 4 MB in 100 steps, all resent; new messages at the very end of the body",
        "--mode growing --steps 100 --grow-bytes 40000 --shape append",
        {},
    ),
    "grow-tools": (
        "the same, tools after the messages: new messages go into the middle of the body",
        "--mode growing --steps 100 --grow-bytes 40000 --shape tools",
        {},
    ),
    "grow-marks": (
        "the same, and a cache mark that moves on with each step: the old last message changes",
        "--mode growing --steps 100 --grow-bytes 40000 --shape marks",
        {},
    ),
}
# headline metric of each scenario: (key, title, factor, smaller is better)
HEAD = {
    "lat-small": ("p50_us", "p50 us"),
    "unary-small": ("cpu_ms_per_1k", "CPU ms/1k req"),
    "unary-200k": ("cpu_ms_per_1k", "CPU ms/1k req"),
    "unary-2m": ("cpu_ms_per_1k", "CPU ms/1k req"),
    "streams-100": ("delay_p50_us", "chunk delay p50 us"),
    "mixed": ("delay_p99_us", "chunk delay p99 us"),
    "streams-500": ("cpu_s_per_1m", "CPU s/1M chunks"),
    "stream-max": ("us_per_chunk", "us per chunk, wall"),
    "grow-append": ("ms_per_mb", "ms/MB"),
    "grow-tools": ("ms_per_mb", "ms/MB"),
    "grow-marks": ("ms_per_mb", "ms/MB"),
}
COLUMNS = {
    "unary": ["rps", "p50_us", "p99_us", "cpu_ms_per_1k", "util_pct", "rss_mb", "other_pct", "errors"],
    "stream": [
        "delay_p50_us",
        "delay_p99_us",
        "ttfb_p50_us",
        "chunks_per_s",
        "cpu_s_per_1m",
        "kb_per_stream",
        "util_pct",
        "rss_mb",
        "other_pct",
        "errors",
    ],
    "mixed": [
        "delay_p50_us",
        "delay_p99_us",
        "ttfb_p50_us",
        "chunks_per_s",
        "loop_requests",
        "loop_p50_us",
        "cpu_s",
        "util_pct",
        "rss_mb",
        "other_pct",
        "errors",
    ],
    "growing": ["loop_ms", "ms_per_mb", "ms_fixed", "last_step_ms", "cpu_s", "rss_mb", "other_pct", "errors"],
}
BIGGER_BETTER = {"rps", "chunks_per_s"}


# ---- processes ---------------------------------------------------------------------------
def tree(pid):
    """pid and its descendants."""
    kids = {}
    for d in os.listdir("/proc"):
        if d.isdigit():
            try:
                with open("/proc/%s/stat" % d) as f:
                    s = f.read()
                kids.setdefault(int(s[s.rindex(")") + 2 :].split()[1]), []).append(int(d))
            except (OSError, ValueError):
                pass
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        todo += kids.get(p, ())
    return out


def cpu_seconds(pid):
    t = 0
    for p in tree(pid):
        try:
            with open("/proc/%d/stat" % p) as f:
                s = f.read()
            v = s[s.rindex(")") + 2 :].split()
            t += int(v[11]) + int(v[12])
        except OSError:
            pass
    return t / TICK


def rss_mb(pid):
    r = 0
    for p in tree(pid):
        try:
            with open("/proc/%d/statm" % p) as f:
                r += int(f.read().split()[1]) * PAGE
        except OSError:
            pass
    return r / 1e6


def busy(cpus):
    """Seconds that these CPUs have been busy, by anyone (stolen time too)."""
    t = 0
    with open("/proc/stat") as f:
        for line in f:
            v = line.split()
            if v[0] in cpus:
                t += sum(map(int, v[1:4] + v[6:9]))
    return t / TICK


def wait_quiet(cpus, limit):
    """Wait, for limit seconds at most, until others leave these CPUs mostly alone."""
    end = time.time() + limit
    while time.time() < end:
        b = busy(cpus)
        time.sleep(0.4)
        if busy(cpus) - b < 0.4 * 0.15 * len(cpus):
            return
        time.sleep(0.3)


def pin(cpu):
    def f():
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})

    return f


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, timeout=5, data=None):
    req = urllib.request.Request(url, data=data, method="POST" if data is not None else "GET")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(req, timeout=timeout) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


class Proc:
    def __init__(self, cmd, cpu, env=None, cwd=None, log=None):
        self.log = open(log, "wb") if log else subprocess.DEVNULL
        self.p = subprocess.Popen(
            cmd,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=pin(cpu),
        )
        self.pid = self.p.pid

    def stop(self):
        for sig, wait in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.pid, sig)  # the group that this script made for it
            except ProcessLookupError:
                break
            try:
                self.p.wait(wait)
                if sig == signal.SIGTERM:
                    time.sleep(0.2)
            except subprocess.TimeoutExpired:
                pass


# ---- targets -----------------------------------------------------------------------------
class Target:
    def __init__(self, spec, dirname):
        self.spec, self.name = spec, spec["name"]
        self.dir = dirname
        self.proc = None
        self.vars = {}
        self.idle_rss = 0

    def fill(self, s):
        s = os.path.expandvars(s)
        for k, v in self.vars.items():
            s = s.replace("{" + k + "}", str(v))
        return s

    def start(self, upstream_port, cpu, targets_dir, others):
        sp = self.spec
        self.vars = {
            "upstream_port": upstream_port,
            "upstream": "http://127.0.0.1:%d" % upstream_port,
            "port": sp.get("port") or free_port(),
            "admin_port": free_port(),
            "dir": self.dir,
            "kit": KIT,
            "python": sys.executable,
            "here": targets_dir,
        }
        if "use" in sp:  # another target's process, asked in another way
            o = others.get(sp["use"])
            if not o or not o.base:
                return "needs target %s" % sp["use"]
            self.vars["port"], self.proc = o.vars["port"], o.proc
        elif "cmd" in sp:
            os.makedirs(self.dir, exist_ok=True)
            for name, src in sp.get("files", {}).items():
                if isinstance(src, list):
                    text = "\n".join(src) + "\n"
                else:
                    for base in (targets_dir, KIT):
                        if os.path.exists(os.path.join(base, src)):
                            with open(os.path.join(base, src)) as f:
                                text = f.read()
                            break
                    else:
                        return "no file %s" % src
                with open(os.path.join(self.dir, name), "w") as f:
                    f.write(self.fill(text))
            cmd = [self.fill(c) for c in sp["cmd"]]
            exe = shutil.which(cmd[0], path=PATH)
            if not exe or any("$" in c for c in cmd):
                return "command not found: %s" % sp["cmd"][0]
            env = dict(os.environ, PATH=PATH, **{k: self.fill(v) for k, v in sp.get("env", {}).items()})
            self.proc = Proc([exe] + cmd[1:], cpu, env, self.dir, os.path.join(self.dir, "log.txt"))
        self.base = self.fill(sp["base"])
        if "use" not in sp:
            url = self.base if "ready_url" not in sp else self.fill(sp["ready_url"])
            url = url.rstrip("/") + sp.get("ready", "/healthz")
            end = time.time() + sp.get("ready_timeout_s", 30)
            while True:
                try:
                    if get(url)[0] < 500:
                        break
                except OSError:
                    pass
                if time.time() > end or (self.proc and self.proc.p.poll() is not None):
                    return "not ready (%s)" % url
                time.sleep(0.2)
        self.idle_rss = rss_mb(self.proc.pid) if self.proc else 0
        return None

    base = None


# ---- one measurement ---------------------------------------------------------------------
def measure(t, scen, args, upstream, up_url):
    desc, line, updef = SCENARIOS[scen][:3]
    d = {"chunks": 200, "delay-us": 0, "ttft-ms": 0, "batch": 1, "chunk-bytes": 48, "reply-bytes": 400}
    d.update(updef)
    get("%s/bench/defaults?%s" % (up_url, "&".join("%s=%s" % kv for kv in d.items())), data=b"")
    sp = t.spec
    cmd = [
        os.path.join(KIT, "load"),
        "--url",
        t.base,
        "--max-s",
        "60",
        "--api",
        sp.get("api", "messages"),
        "--model",
        sp.get("model", "bench-model"),
    ]
    if "path" in sp:
        cmd += ["--path", sp["path"]]
    for k, v in sp.get("headers", {}).items():
        cmd += ["--header", "%s: %s" % (k, t.fill(v))]
    back = cmd + SCENARIOS[scen][3].split() if len(SCENARIOS[scen]) > 3 else None
    cmd += line.format(d=args.seconds).split()
    cpus = ["cpu%d" % args.cpu_target, "cpu%d" % args.cpu_load] if args.cpu_load is not None else ["cpu"]
    wait_quiet(cpus, args.quiet)
    c0 = cpu_seconds(t.proc.pid) if t.proc else 0
    t0, b0, u0 = time.time(), busy(cpus), cpu_seconds(upstream.pid)
    bp = (
        subprocess.Popen(back, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=pin(args.cpu_load))
        if back
        else None
    )
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=pin(args.cpu_load))
    rss = rss_mb(t.proc.pid) if t.proc else 0
    while True:
        try:
            out, err = p.communicate(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            if t.proc:
                rss = max(rss, rss_mb(t.proc.pid))
            if time.time() - t0 > 90:
                p.kill()
    br = None
    if bp:
        try:
            br = json.loads(bp.communicate(timeout=30)[0])
        except (ValueError, subprocess.TimeoutExpired):
            bp.kill()
    wall = time.time() - t0
    c1 = cpu_seconds(t.proc.pid) if t.proc else 0
    b1, u1 = busy(cpus), cpu_seconds(upstream.pid)
    try:
        r = json.loads(out)
    except ValueError:
        return {"errors": -1, "note": (err or b"").decode()[-200:]}
    cpu = c1 - c0
    other = max(0, (b1 - b0) - cpu - (u1 - u0) - r["client_cpu_s"]) / wall / len(cpus)
    m = {
        "other_pct": 100 * other,
        "errors": r["errors"] + r["unfinished"],
        "cpu_s": cpu,
        "util_pct": 100 * cpu / wall,
        "rss_mb": rss,
        "rps": r["rps"],
        "p50_us": r["latency_us"]["p50"],
        "p99_us": r["latency_us"]["p99"],
        "ttfb_p50_us": r["ttfb_us"]["p50"],
        "ttfb_p99_us": r["ttfb_us"]["p99"],
        "reconnects": r["reconnects"],
        "first_bad_status": r["first_bad_status"],
        "client_cpu_s": r["client_cpu_s"],
        "cpu_ms_per_1k": cpu * 1e6 / r["total_requests"] if r["total_requests"] else 0,
    }
    if r["mode"] == "stream":
        m.update(
            delay_p50_us=r["chunk_delay_us"]["p50"],
            delay_p99_us=r["chunk_delay_us"]["p99"],
            chunks_per_s=r["chunks_per_s"],
            us_per_chunk=1e6 / r["chunks_per_s"] if r["chunks_per_s"] else None,
            cpu_s_per_1m=cpu * 1e6 / r["total_chunks"] if r["total_chunks"] else 0,
        )
        if t.proc and r["conns"] >= 100:  # what the streams hold, over the process as it started
            m["kb_per_stream"] = max(0, rss - t.idle_rss) * 1000 / r["conns"]
    if br:  # streams beside agent loops: CPU is for both
        m.update(
            loop_p50_us=br["latency_us"]["p50"],
            loop_p99_us=br["latency_us"]["p99"],
            loop_requests=br["requests"],
            errors=m["errors"] + br["errors"],
        )
    if r["mode"] == "growing":
        m.update(
            loop_ms=r["loop_ms"],
            ms_per_mb=r["ms_per_mb"],
            ms_fixed=r["ms_fixed"],
            last_step_ms=statistics.median(s[1] for s in r["steps"][-5:]) if r["steps"] else 0,
            steps=r["steps_done"],
            errors=m["errors"] + (100 - r["steps_done"]),
        )
    return m


# ---- report ------------------------------------------------------------------------------
def med(rows, key):
    v = [r[key] for r in rows if r and key in r]
    return statistics.median(v) if v else None


def ratio(res, scen, a, b, key):
    v = []
    for ra, rb in zip(res[scen].get(a, []), res[scen].get(b, [])):
        if ra and rb and ra.get(key) and rb.get(key):
            v.append(ra[key] / rb[key])
    return statistics.median(v) if v else None


def fmt(x):
    if x is None:
        return "-"
    if x == 0:
        return "0"
    if abs(x) >= 1000:
        return "%.0f" % x
    return "%.3g" % x


def report(res, names, bases, rounds):
    o = [
        "%d rounds, medians; ratios are medians of same-round ratios (a lower one is better, but for rps and chunks_per_s)."
        % rounds,
        "",
    ]
    scens = [s for s in SCENARIOS if s in res]
    for b in bases:
        if b not in names:
            continue
        keys = [(s,) + HEAD[s] for s in scens]
        if b == "direct":
            keys = [k for k in keys if not k[1].startswith("cpu")]
        o += [
            "### Summary: headline metric as a multiple of %s" % b,
            "",
            "| target | " + " | ".join("%s %s" % (s, t) for s, k, t in keys) + " |",
            "|---" * (len(keys) + 1) + "|",
        ]
        for n in names:
            cells = []
            for s, k, t in keys:
                e = med(res[s].get(n, []), "errors")
                q = ratio(res, s, n, b, k)
                cells.append("-" if q is None else "%s%s" % (fmt(q), " (!)" if e else ""))
            o.append("| %s | %s |" % (n, " | ".join(cells)))
        o.append("")
    for s in scens:
        kind = re.search(r"--mode (\w+)", SCENARIOS[s][1]).group(1)
        cols = COLUMNS["mixed" if s == "mixed" else kind]
        hk = (
            "rps"
            if kind == "unary"
            else "delay_p99_us"
            if s == "mixed"
            else "delay_p50_us"
            if s.startswith("streams")
            else "chunks_per_s"
            if kind == "stream"
            else "loop_ms"
        )
        o += [
            "### %s: %s" % (s, SCENARIOS[s][0]),
            "",
            "| target | "
            + " | ".join(cols)
            + " | "
            + " | ".join("%s x %s" % (hk, b) for b in bases if b in names)
            + " |",
            "|---" * (1 + len(cols) + sum(b in names for b in bases)) + "|",
        ]
        for n in names:
            rows = res[s].get(n, [])
            if not any(rows):
                continue
            o.append(
                "| %s | %s | %s |"
                % (
                    n,
                    " | ".join(fmt(med(rows, c)) for c in cols),
                    " | ".join(fmt(ratio(res, s, n, b, hk)) for b in bases if b in names),
                )
            )
        o.append("")
    return "\n".join(o)


CHECK = re.compile(r"^\s*(\S+)/(\S+)/(\S+)\s*(<=|>=)\s*([\d.]+)\s*(?:x\s*(\S+))?\s*$")


def check(res, text):
    """'target/scenario/metric <= 4 x nginx' (a ratio) or '... <= 0' (the median itself)."""
    m = CHECK.match(text)
    if not m:
        return None, "cannot read %r" % text
    t, s, k, op, lim, base = m.groups()
    if s not in res:
        return None, "no scenario %s" % s
    v = ratio(res, s, t, base, k) if base else med(res[s].get(t, []), k)
    if v is None:
        return None, "no value for %r" % text
    return (v <= float(lim) if op == "<=" else v >= float(lim)), "%s: %.4g" % (text.strip(), v)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--targets", action="append", help="JSON file, repeatable (targets.json)")
    a.add_argument("--only", help="names of targets, comma separated")
    a.add_argument("--scenarios", help="names, comma separated: " + ", ".join(SCENARIOS))
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--seconds", type=float, default=3.0, help="length of the timed scenarios")
    a.add_argument("--cpu-target", type=int, default=0)
    a.add_argument("--cpu-load", type=int, default=1)
    a.add_argument("--bases", default="direct,nginx", help="targets to give ratios against")
    a.add_argument(
        "--check",
        action="append",
        default=[],
        help="'target/scenario/metric <= 4 x nginx'; exit 1 if it fails",
    )
    a.add_argument(
        "--quiet",
        type=float,
        default=0,
        help="before each run wait up to so many seconds for a quiet machine",
    )
    a.add_argument("--out", help="raw results, JSON")
    a.add_argument("--md", help="tables, Markdown (stdout otherwise)")
    a.add_argument("--list", action="store_true", help="list scenarios and stop")
    args = a.parse_args()
    if args.list:
        for k, v in SCENARIOS.items():
            print("%-12s %s" % (k, v[0]))
        return 0
    ncpu = os.sched_getaffinity(0)
    if args.cpu_target not in ncpu or args.cpu_load not in ncpu or len(ncpu) < 2:
        print("warning: not enough CPUs to pin; figures are not per core", file=sys.stderr)
        args.cpu_target = args.cpu_load = None
    for b in ("upstream", "load"):
        if not os.path.exists(os.path.join(KIT, b)):
            subprocess.check_call(["make", "-C", KIT, "-s", b])
    specs = []
    for f in args.targets or [os.path.join(KIT, "targets.json")]:
        with open(f) as fh:
            for s in json.load(fh)["targets"]:
                s["_dir"] = os.path.dirname(os.path.abspath(f))
                specs = [x for x in specs if x["name"] != s["name"]] + [s]
    only = args.only.split(",") if args.only else None
    if only:
        specs = [s for s in specs if s["name"] in only]
    scens = args.scenarios.split(",") if args.scenarios else list(SCENARIOS)
    tmp = tempfile.mkdtemp(prefix="bench-")
    port = free_port()
    upstream = Proc([os.path.join(KIT, "upstream"), "--port", str(port)], args.cpu_load)
    up_url = "http://127.0.0.1:%d" % port
    targets, by_name = [], {}
    res = {s: {} for s in scens}
    notes = {}
    try:
        for _ in range(50):
            try:
                if get(up_url + "/healthz")[0] == 200:
                    break
            except OSError:
                time.sleep(0.1)
        for sp in specs:
            t = Target(sp, os.path.join(tmp, sp["name"].replace("/", "_")))
            why = t.start(port, args.cpu_target, sp["_dir"], by_name)
            if why:
                notes[sp["name"]] = why
                print("skip %s: %s" % (sp["name"], why), file=sys.stderr)
                if t.proc and "use" not in sp:
                    t.proc.stop()
                t.base = None
                continue
            targets.append(t)
            by_name[t.name] = t
            print("ready %s" % t.name, file=sys.stderr)
        for r in range(args.rounds):
            order = targets[r % len(targets) :] + targets[: r % len(targets)]
            for s in scens:
                for t in order:
                    rows = res[s].setdefault(t.name, [None] * args.rounds)
                    if s in t.spec.get("skip", ()):
                        continue
                    m = rows[r] = measure(t, s, args, upstream, up_url)
                    k = HEAD[s][0]
                    print(
                        "round %d %-12s %-24s %s=%s errors=%s other=%s%%"
                        % (r + 1, s, t.name, k, fmt(m.get(k)), m["errors"], fmt(m.get("other_pct"))),
                        file=sys.stderr,
                        flush=True,
                    )
                    if m["errors"] < 0:
                        print("   " + m.get("note", ""), file=sys.stderr)
            if args.out:
                with open(args.out, "w") as f:
                    json.dump({"results": res, "notes": notes}, f, indent=1)
    finally:
        for t in targets:
            if t.proc and "use" not in t.spec:
                t.proc.stop()
        upstream.stop()
        shutil.rmtree(tmp, ignore_errors=True)
    text = report(res, [t.name for t in targets], args.bases.split(","), args.rounds)
    if args.md:
        with open(args.md, "w") as f:
            f.write(text + "\n")
    else:
        print(text)
    bad = 0
    for c in args.check:
        good, why = check(res, c)
        print("%s %s" % ("ok  " if good else "FAIL", why))
        bad += not good
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
