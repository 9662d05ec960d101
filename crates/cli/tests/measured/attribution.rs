//! Late time on purpose: each test forces one cause and asks whether that is the one that is found.
//! The cause itself is the witness. What other programs on the machine do meanwhile shows as other
//! causes, measured by the kernel's clocks; so a share is judged among what the forced cause and
//! memory have of the late time.

use std::path::Path;

use crate::common::{Running, machine, quell};
use serde_json::Value;

/// A short list on CPU 0, and something beside it; `forced` is a configuration's fragment.
fn experiment(beside: &str, forced: &str) -> String {
    format!(
        "quell = 1\nname = \"forced\"\nbackends = [\"linux\"]\nseed = 1\n\
         [measure]\nrounds = 2\nwarmup = \"50ms\"\nduration = \"400ms\"\nbaseline = \"solo\"\n\
         [subject.victim]\nrole = \"critical\"\ngroup = \"it\"\ncpus = \"0\"\n\
         run = {{ kind = \"latency\", size = \"64KiB\", order = \"random\" }}\n\
         [subject.cause]\n{beside}\n\
         [configuration.solo]\nalone = true\n[configuration.forced]\n{forced}\n"
    )
}

/// The victim's attribution under the forced cause.
fn attributed(dir: &Path, text: &str) -> Value {
    let file = dir.join("forced.toml");
    std::fs::write(&file, text).unwrap();
    let done = Running::start(
        quell()
            .args(["compare", "--json", "--out"])
            .arg(dir)
            .arg(&file),
    )
    .wait();
    let result = done.json();
    let of = |list: &Value, name: &str| {
        let list = list.as_array().unwrap();
        list.iter().find(|e| e["name"] == name).unwrap().clone()
    };
    let forced = of(&result["configurations"], "forced");
    assert!(forced.get("refused").is_none(), "{forced:#}");
    of(&forced["subjects"], "victim")["attribution"].clone()
}

fn ns(attribution: &Value, cause: &str) -> f64 {
    let parts = attribution["parts"].as_array().cloned().unwrap_or_default();
    let part = parts.iter().find(|p| p["cause"] == cause);
    part.map_or(0.0, |p| p["ns"].as_f64().unwrap())
}

/// The forced cause's part of what it and memory have together.
fn against_memory(attribution: &Value, cause: &str) -> f64 {
    let (cause, memory) = (ns(attribution, cause), ns(attribution, "memory"));
    cause / (cause + memory).max(1.0)
}

/// Skips aloud where the kernel does not tell how long threads wait.
fn told() -> bool {
    let told = Path::new("/proc/self/schedstat").exists();
    if !told {
        quell_testing::skip("this kernel has no schedstat");
    }
    told
}

#[test]
fn a_busy_loop_on_its_cpu_is_preemption() {
    let (true, Some(_machine)) = (told(), machine()) else {
        return;
    };
    // Pinned by itself: subjects that share a CPU with a critical one are refused.
    let beside = "role = \"best-effort\"\ncommand = [\"taskset\", \"-c\", \"0\", \"sh\", \"-c\", \
                  \"i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done\"]";
    // By the kernel's account of how long the victim waited. Seen once: the loop hardly ran.
    let found = (0..3).find_map(|_| {
        let dir = tempfile::tempdir().unwrap();
        let found = attributed(dir.path(), &experiment(beside, ""));
        let [wall, waited] = accounted(dir.path());
        eprintln!("{waited} ns of {wall}");
        (waited > 0.2 * wall).then_some(found)
    });
    let found = found.expect("the loop takes its part");
    assert!(found["late"].as_u64().unwrap() > 0, "{found:#}");
    assert!(against_memory(&found, "preemption") > 0.7, "{found:#}");
}

/// How long the victim's windows were, and how long it waited for a CPU in them.
fn accounted(dir: &Path) -> [f64; 2] {
    let mut accounts = std::fs::read_dir(dir).unwrap().filter_map(|e| {
        let account = e.unwrap().path().join("samples/account-forced--victim.csv");
        std::fs::read_to_string(account).ok()
    });
    let account = accounts.next().unwrap();
    let mut rows = account.lines();
    assert!(
        rows.next()
            .unwrap()
            .starts_with("round,windows,at_ns,wall_ns,cpu_ns,waited_ns")
    );
    rows.fold([0.0, 0.0], |[wall, waited], row| {
        let fields: Vec<f64> = row.split(',').map(|f| f.parse().unwrap()).collect();
        [wall + fields[3], waited + fields[5]]
    })
}

#[test]
fn a_stop_of_its_group_is_throttling_along() {
    let (true, Some(_machine)) = (told(), machine()) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    // A brake stops its group only, so that both are of one group that allows it.
    let beside = "role = \"critical\"\ngroup = \"it\"\n\
                  run = { kind = \"bandwidth\", operation = \"write\", size = \"1MiB\" }";
    let forced = "group.it.allow = [\"throttle\"]\ngroup.it.cpus = \"0\"\n\
                  group.it.limit.bandwidth = \"20%\"\nmechanisms.bandwidth = \"regulator\"";
    let found = attributed(dir.path(), &experiment(beside, forced));
    assert!(against_memory(&found, "throttled-along") > 0.5, "{found:#}");
    // Stopped for most of the time, the stream beside it gets little; what others on the machine
    // take is preemption, too.
    let (along, preempted) = (ns(&found, "throttled-along"), ns(&found, "preemption"));
    assert!(along > preempted / 2.0, "{found:#}");
}

#[test]
fn a_stream_on_another_cpu_is_memory() {
    let (true, Some(_machine)) = (told(), machine()) else {
        return;
    };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return quell_testing::skip("there is one CPU only");
    }
    let dir = tempfile::tempdir().unwrap();
    let beside = "role = \"best-effort\"\ncpus = \"1\"\n\
                  run = { kind = \"bandwidth\", operation = \"write\", size = \"4 LLC\" }";
    let text = experiment(beside, "").replace("64KiB", "0.5 LLC");
    let found = attributed(dir.path(), &text);
    let late = found["late_ns"].as_f64().unwrap();
    // What others on the machine and its host take of the CPU is not the stream's.
    let others = ["preemption", "steal", "standstill"].map(|cause| ns(&found, cause));
    if late - others.iter().sum::<f64>() < 20e6 {
        return quell_testing::skip("a stream does not slow a list down here");
    }
    let memory = ns(&found, "memory");
    for cause in ["throttled-along", "interrupts", "faults"] {
        assert!(memory > 2.0 * ns(&found, cause), "{cause}: {found:#}");
    }
}
