//! The OpenMetrics text: its form, and the figures of kernels and of the program.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pikake::console::metrics;
use pikake::console::metrics::prometheus_client::metrics::counter::Counter;
use pikake::console::metrics::prometheus_client::metrics::family::Family;
use pikake::console::metrics::prometheus_client::metrics::gauge::Gauge;
use pikake::console::metrics::prometheus_client::metrics::histogram::{
    Histogram, exponential_buckets,
};
use pikake::kernel::inspect::record_steps;
use pikake::sync::Mutex;
use pikake::traps::figures::measure_times;
use pikake::{Kernel, KernelHandle, Kernels, sleep, spawn, timeout_after};

mod services;

/// The limit of a wait that ends at once.
const LIMIT: Duration = Duration::from_secs(30);

/// The value of a sample, by its name and labels.
fn value(text: &str, sample: &str) -> Option<f64> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    Some(line.parse().expect("a number"))
}

/// The labels of the kernel of this task.
fn labels() -> String {
    let name = thread::current().name().unwrap_or_default().to_owned();
    format!("{{kernel=\"{}\",thread=\"{name}\"}}", pikake::current().kernel())
}

/// Checks what the specification demands of the form of a text.
fn check_form(text: &str) {
    let lines = text.strip_suffix("# EOF\n").expect("the end of the text").lines();
    let mut families = BTreeSet::new();
    let mut family = (String::new(), String::new());
    for line in lines {
        if let Some(meta) = line.strip_prefix("# ") {
            let (word, rest) = meta.split_once(' ').unwrap();
            let (name, rest) = rest.split_once(' ').unwrap();
            match word {
                "HELP" => assert!(families.insert(name.to_owned()), "`{name}` is there once"),
                "TYPE" => family = (name.to_owned(), rest.to_owned()),
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, kind) = &family;
        let end = line.find(['{', ' ']).expect("a value");
        let suffix = line[..end].strip_prefix(name.as_str()).unwrap_or_else(|| panic!("{line}"));
        let suffixes: &[&str] = match kind.as_str() {
            "gauge" => &[""],
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_count", "_sum"],
            kind => panic!("{kind}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn text_has_figures_of_kernel_and_process() {
    record_steps();
    let kernel = Kernel::builder().name("main").build().unwrap();
    let text = kernel.run(async {
        let held: Vec<_> =
            (0..3).map(|_| spawn(std::future::pending::<()>()).cancel_on_drop()).collect();
        sleep(Duration::from_millis(1)).await.unwrap();
        pikake::thread::run_in_thread(|| ()).await.unwrap();
        let text = metrics::text().await.unwrap();
        let of = |name: &str| value(&text, &format!("{name}{}", labels()));
        assert_eq!(of("pikake_kernel_up"), Some(1.0));
        assert_eq!(of("pikake_tasks"), Some(4.0));
        assert_eq!(of("pikake_tasks_spawned_total"), Some(4.0));
        assert!(of("pikake_steps_total") >= Some(6.0), "{text}");
        assert!(of("pikake_driver_polls_total") >= Some(1.0), "{text}");
        assert!(of("pikake_messages_total") >= Some(1.0), "{text}");
        assert_eq!(of("pikake_sockets"), Some(0.0));
        assert!(of("pikake_future_bytes") > of("pikake_tasks"), "{text}");
        assert_eq!(of("pikake_timer_lateness_seconds_count"), Some(1.0));
        // The buckets are always the same ones, whatever was counted.
        let bucket = |limit: &str| {
            let labels = labels().replace('{', &format!("{{le=\"{limit}\","));
            value(&text, &format!("pikake_timer_lateness_seconds_bucket{labels}"))
        };
        assert!(bucket("0.000001").is_some() && bucket("4.194304").is_some(), "{text}");
        assert_eq!(bucket("+Inf"), Some(1.0), "{text}");
        let idle = labels().replace('}', ",state=\"idle\"}");
        assert_eq!(value(&text, &format!("pikake_helper_threads{idle}")), Some(1.0));
        drop(held);
        text
    });
    check_form(&text);
    assert!(value(&text, "process_cpu_seconds_total") >= Some(0.0));
    assert!(text.contains("# UNIT process_cpu_seconds seconds\n"));
    assert!(value(&text, "process_context_switches_total{kind=\"voluntary\"}").is_some());
    if cfg!(target_os = "linux") {
        assert!(value(&text, "process_resident_memory_bytes") > Some(1e6));
        assert!(value(&text, "process_open_fds") >= Some(3.0));
        assert!(value(&text, "process_threads") >= Some(1.0));
    }
}

/// A lock that is slow, and tasks that one place spawns.
#[test]
fn text_has_locks_and_places_of_spawn() {
    measure_times();
    let kernel = Kernel::builder().name("main").build().unwrap();
    let line = kernel.run(async {
        let stock = Rc::new(Mutex::new(()).named("stock"));
        let held = stock.lock().await.unwrap();
        let wait = || {
            spawn({
                let stock = stock.clone();
                async move { stock.lock().await.map(drop) }
            })
        };
        let waiting: Vec<_> = (0..3).map(|_| wait()).collect();
        sleep(Duration::from_millis(5)).await.unwrap();
        let while_waiting = metrics::text().await.unwrap();
        drop(held);
        for task in waiting {
            task.await.unwrap().unwrap();
        }
        let text = metrics::text().await.unwrap();
        check_form(&text);
        let of_lock = labels().replace('}', ",lock=\"mutex `stock`\"}");
        for (figure, count) in [("wait", 3.0), ("hold", 3.0)] {
            let sample = format!("pikake_lock_{figure}_seconds_count{of_lock}");
            assert_eq!(value(&text, &sample), Some(count), "{text}");
        }
        // Other tests have kernels as well.
        let of_kernel = labels().replace('}', "");
        let of_kernel = format!("pikake_tasks_by_place{of_kernel},");
        let mut lines = while_waiting.lines().filter(|line| line.starts_with(&of_kernel));
        lines.next().unwrap().to_owned()
    });
    // The place with the most tasks comes first.
    assert!(line.contains("metrics.rs:") && line.ends_with("\"} 3"), "{line}");
}

#[test]
fn text_has_figures_of_kernels_beside_each_other() {
    let text = pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let other = kernels.handles()[0].call(|| async { labels() }).await.unwrap();
        let text = metrics::text().await.unwrap();
        for labels in [labels(), other] {
            let of = |name: &str| value(&text, &format!("{name}{labels}"));
            let late = of("pikake_kernel_late_seconds");
            assert!(late.is_some() && late <= of("pikake_kernel_late_max_seconds"), "{text}");
            assert_eq!(of("pikake_offers_made_total"), Some(0.0));
            assert_eq!(of("pikake_offers_taken_total"), Some(0.0));
        }
        text
    });
    check_form(&text);
}

#[test]
fn text_has_figures_of_program() {
    let orders = Counter::<u64>::default();
    let depth = Family::<Vec<(String, String)>, Gauge>::default();
    let times = Histogram::new(exponential_buckets(0.5, 2.0, 2));
    metrics::register(|registry| {
        registry.register("orders", "Orders", orders.clone());
        registry.register("queue_depth", "Orders in a queue", depth.clone());
        registry.register("order_time", "Time of an order", times.clone());
    });
    orders.inc_by(2);
    let nasty = "a\"b\\c\nd".to_owned();
    depth.get_or_create(&vec![("queue".into(), nasty)]).set(-7);
    times.observe(0.75);
    let text = pikake::run(metrics::text()).unwrap();
    check_form(&text);
    let expected = "# HELP orders Orders.\n# TYPE orders counter\norders_total 2\n\
                    # HELP queue_depth Orders in a queue.\n# TYPE queue_depth gauge\n\
                    queue_depth{queue=\"a\\\"b\\\\c\\nd\"} -7\n\
                    # HELP order_time Time of an order.\n# TYPE order_time histogram\n\
                    order_time_sum 0.75\norder_time_count 1\n\
                    order_time_bucket{le=\"0.5\"} 0\norder_time_bucket{le=\"1.0\"} 1\n\
                    order_time_bucket{le=\"+Inf\"} 1\n# EOF\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn names_of_threads_are_escaped() {
    let ours = thread::Builder::new().name("a \"quoted\" \\ name".into());
    let text = ours.spawn(|| pikake::run(metrics::text()).unwrap()).unwrap().join().unwrap();
    check_form(&text);
    assert!(text.contains("thread=\"a \\\"quoted\\\" \\\\ name\"} 1\n"), "{text}");
}

/// A kernel in a long step delays the text for a moment only.
#[test]
fn stuck_kernel_is_not_up() {
    let (release, released) = mpsc::channel::<()>();
    let (entered, begun) = mpsc::channel();
    let kernels = Kernels::start(1).unwrap();
    let stuck: KernelHandle = kernels.handles()[0].clone();
    let block = move || async move {
        entered.send(()).unwrap();
        let _ = released.recv();
    };
    stuck.spawn(block).unwrap();
    begun.recv_timeout(LIMIT).unwrap();
    let began = Instant::now();
    let text = pikake::run(metrics::text()).unwrap();
    assert!(began.elapsed() < LIMIT);
    // All who ask a kernel that does not answer share one closure.
    pikake::run(async {
        let texts: Vec<_> = (0..50).map(|_| spawn(metrics::text())).collect();
        for text in texts {
            text.await.unwrap().unwrap();
        }
    });
    drop(release);
    let id = stuck.id();
    let up = format!("pikake_kernel_up{{kernel=\"{id}\",thread=\"pikake-1\"}}");
    assert_eq!(value(&text, &up), Some(0.0), "{text}");
    assert!(!text.contains(&format!("pikake_tasks{{kernel=\"{id}\"")), "{text}");
    let late = format!("pikake_kernel_late_seconds{{kernel=\"{id}\",thread=\"pikake-1\"}}");
    assert!(value(&text, &late).is_some(), "{text}");
    check_form(&text);
    let messages = format!("pikake_messages_total{{kernel=\"{id}\",thread=\"pikake-1\"}}");
    let count = loop {
        let text = pikake::run(metrics::text()).unwrap();
        if let Some(count) = value(&text, &messages) {
            break count;
        }
        assert!(began.elapsed() < 2 * LIMIT, "{text}");
    };
    assert!(count < 20.0, "{count} messages");
}

#[test]
fn interruption_ends_the_look() {
    pikake::run(async {
        let outcome = timeout_after(Duration::ZERO, async {
            // The deadline has passed: the next wait is interrupted.
            metrics::text().await.map(drop)
        });
        assert!(outcome.await.is_err());
    });
}
