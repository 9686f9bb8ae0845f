//! The watchdog: looks at given times, the real thread, and, under the model checker, all state
//! that kernels and the watchdog share.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use pikake_traps::{Home, KernelId, LongStepStage};

use super::{Pulse, Report, Watchdog, lock};

fn is_over(report: &Report) -> bool {
    report.step.stage == LongStepStage::Over
}

/// The id of a kernel.
fn kernel() -> KernelId {
    Home::open(|| ()).id()
}

/// A watchdog without a thread.
fn watchdog() -> &'static Watchdog {
    Box::leak(Box::new(Watchdog::new()))
}

#[cfg(not(pikake_shuttle))]
mod looks {
    use std::cell::Cell;
    use std::iter;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::thread;
    use std::time::Instant;

    use pikake_time::Ticks;
    use pikake_traps::{LocalHome, Peers};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::watchdog::late::{LateReport, REPORTED_LATENESS};
    use crate::watchdog::{NAME_BYTES, Watched, watch};

    const LIMIT: Duration = ms(50);

    /// The longest wait of a test, which fails then.
    const TEST_LIMIT: Duration = Duration::from_secs(30);

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A report: task, name, took, whether the step is over.
    fn fields(report: &Report) -> (u64, String, Duration, bool) {
        let step = &report.step;
        (step.task.0, step.name.to_string(), step.took, is_over(report))
    }

    /// A watchdog that looks when a test says so.
    struct Looks(&'static Watchdog, Instant);

    impl Looks {
        fn new() -> Self {
            Self(watchdog(), Instant::now())
        }

        fn kernel(&self, limit: Duration) -> Arc<Pulse> {
            let pulse = Pulse::of(self.0, kernel(), limit);
            pulse.is_back();
            pulse
        }

        fn at(&self, time: u64) -> Vec<(u64, String, Duration, bool)> {
            let reports = lock(&self.0.state).look(self.1 + ms(time));
            reports.iter().filter(|report| report.is_logged).map(fields).collect()
        }

        fn watched(&self) -> usize {
            lock(&self.0.state).entries.len()
        }
    }

    #[test]
    fn a_long_step_is_reported_at_doubling_lengths() {
        let looks = Looks::new();
        let pulse = looks.kernel(LIMIT);
        let _watched = Watchdog::add(&pulse);
        pulse.show_name(7, "parser");
        pulse.step_begins(1, 7, Location::caller());
        let mut log = Vec::new();
        for time in [0, 49, 50, 51, 99, 100, 199, 210, 399, 900, 1599, 1600] {
            log.extend(looks.at(time));
        }
        pulse.step_is_over();
        log.extend(looks.at(1610));
        log.extend(looks.at(1620));
        let report = |took, is_over| (7, "parser".to_owned(), ms(took), is_over);
        let lasting = [50, 100, 210, 900, 1600].map(|took| report(took, false));
        assert_eq!(log[..5], lasting);
        assert_eq!(log[5..], [report(1610, true)]);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let looks = Looks::new();
        let pulse = looks.kernel(LIMIT);
        let _watched = Watchdog::add(&pulse);
        let long = "ß".repeat(NAME_BYTES);
        let mut names = Vec::new();
        for (task, name) in [(7, &*long), (8, ""), (9, "parser"), (8, "")] {
            if !name.is_empty() {
                pulse.show_name(task, name);
            }
            let step = names.len() as u64;
            pulse.step_begins(step, task, Location::caller());
            let time = 1_000 * step;
            looks.at(time);
            names.extend(looks.at(time + 60).into_iter().filter(|report| !report.3));
            pulse.step_is_over();
        }
        let names: Vec<_> = names.iter().map(|report| &*report.1).collect();
        assert_eq!(names, [&long[..NAME_BYTES], "", "parser", ""]);
    }

    /// A kernel with peers, and its batches.
    struct Member {
        pulse: Arc<Pulse>,
        home: LocalHome,
        id: KernelId,
        batches: Cell<u64>,
        watched: Watched,
    }

    impl Member {
        fn new(looks: &Looks, peers: &Peers) -> Self {
            let pulse = looks.kernel(Duration::MAX);
            let watched = Watchdog::add(&pulse);
            let home = Home::open(|| ());
            peers.add(home.shared());
            pulse.joins(home.shared(), peers);
            let new = Self { pulse, id: home.id(), home, batches: Cell::new(0), watched };
            new.batch();
            new
        }

        fn batch(&self) {
            self.batches.set(self.batches.get() + 1);
            self.home.set_late_from(Ticks::new(self.batches.get()));
        }

        fn sleep(&self) {
            self.home.set_late_from(Ticks::MAX);
            self.pulse.sleeps();
        }

        fn wake(&self) {
            self.pulse.is_back();
            self.batch();
        }

        fn is_left(&self) {
            self.home.set_late_from(Ticks::ZERO);
            self.pulse.sleeps();
        }
    }

    /// The report of a late kernel: its number, how late it is, the idle kernel, and the task, name
    /// and length of the longest step.
    type Late = (KernelId, Duration, KernelId, Option<(u64, String, Duration)>);

    impl Looks {
        fn late_at(&self, time: u64) -> Option<Late> {
            let (mut state, now) = (lock(&self.0.state), self.1 + ms(time));
            state.look(now);
            let LateReport { kernel, late, idle, longest } = state.look_for_late(now)?;
            let longest = longest.map(|step| (step.task, step.name.into(), step.took));
            Some((kernel, late, idle, longest))
        }
    }

    #[test]
    fn late_kernel_beside_an_idle_one_is_reported() {
        let (looks, peers) = (Looks::new(), Peers::new());
        let [late, idle] = [(); 2].map(|()| Member::new(&looks, &peers));
        idle.sleep();
        assert_eq!(looks.late_at(0), None);
        // A step that one look finds, one that two looks find, and a short one again.
        let mut reports = Vec::new();
        for (step, times) in (0..).zip([&[10][..], &[20, 49], &[50]]) {
            late.pulse.show_name(step, &format!("task {step}"));
            late.pulse.step_begins(step, step, Location::caller());
            reports.extend(times.iter().filter_map(|time| looks.late_at(*time)));
            late.pulse.step_is_over();
        }
        let longest = Some((1, "task 1".to_owned(), ms(29)));
        assert_eq!(reports, [(late.id, ms(50), idle.id, longest)]);
    }

    #[test]
    fn another_batch_is_not_late() {
        let (looks, peers) = (Looks::new(), Peers::new());
        let [busy, idle] = [(); 2].map(|()| Member::new(&looks, &peers));
        idle.sleep();
        for time in 0..100 {
            assert_eq!(looks.late_at(49 * time), None);
            // Each look finds another batch, or the end of a sleep between two looks.
            match time % 2 {
                0 => busy.batch(),
                _ => {
                    busy.sleep();
                    busy.wake();
                }
            }
        }
    }

    #[test]
    fn only_an_idle_peer_counts() {
        let (looks, peers) = (Looks::new(), Peers::new());
        let [late, peer] = [(); 2].map(|()| Member::new(&looks, &peers));
        let stranger = Member::new(&looks, &Peers::new());
        stranger.sleep();
        assert_eq!([0, 60, 120].map(|time| looks.late_at(time)), [None, None, None]);
        // Its owner has left it, so it takes no work.
        peer.is_left();
        assert_eq!(looks.late_at(180), None);
        peer.pulse.is_back();
        peer.sleep();
        assert_eq!(looks.late_at(240), Some((late.id, ms(240), peer.id, None)));
        drop((late.watched, stranger.watched));
    }

    #[test]
    fn late_kernels_are_reported_once_a_minute() {
        let (looks, peers) = (Looks::new(), Peers::new());
        let [first, second, idle] = [(); 3].map(|()| Member::new(&looks, &peers));
        idle.sleep();
        let mut times = Vec::new();
        for time in (0..200_000).step_by(100) {
            let report = looks.late_at(time);
            times.extend(report.map(|(kernel, ..)| (time, kernel)));
        }
        assert_eq!(times, [100, 60_100, 120_100, 180_100].map(|time| (time, first.id)));
        drop(second.watched);
    }

    #[test]
    fn kernels_with_peers_are_looked_at_more_often() {
        let looks = Looks::new();
        let pulse = looks.kernel(ms(200));
        let _watched = Watchdog::add(&pulse);
        assert_eq!(lock(&looks.0.state).look_every(), ms(50));
        let _member = Member::new(&looks, &Peers::new());
        assert_eq!(lock(&looks.0.state).look_every(), REPORTED_LATENESS / 4);
    }

    #[track_caller]
    fn here() -> &'static Location<'static> {
        Location::caller()
    }

    #[test]
    fn the_place_of_spawning_is_reported() {
        let looks = Looks::new();
        let pulse = looks.kernel(LIMIT);
        let _watched = Watchdog::add(&pulse);
        let places = [here(), here(), here()];
        for (step, place) in (0..).zip(places.iter().chain(&places)) {
            pulse.step_begins(step, step, place);
            looks.at(100 * step);
            let reports = lock(&looks.0.state).look(looks.1 + ms(100 * step + 60));
            assert_eq!(reports[0].step.spawned_at, *place);
            pulse.step_is_over();
        }
    }

    #[test]
    fn short_steps_are_not_reported() {
        let looks = Looks::new();
        let pulse = looks.kernel(LIMIT);
        let _watched = Watchdog::add(&pulse);
        for step in 0..100 {
            // The same task in each look, but another step.
            pulse.step_begins(step, 7, Location::caller());
            assert_eq!(looks.at(40 * step), []);
            assert_eq!(looks.at(40 * step + 39), []);
            pulse.step_is_over();
        }
        assert_eq!(looks.at(10_000), []);
    }

    #[test]
    fn zero_and_maximal_limits_work() {
        let looks = Looks::new();
        for (limit, reports) in [(Duration::ZERO, 1), (Duration::MAX, 0)] {
            let pulse = looks.kernel(limit);
            let _watched = Watchdog::add(&pulse);
            pulse.step_begins(1, 1, Location::caller());
            looks.at(0);
            assert_eq!(looks.at(1_000_000).len(), reports);
        }
    }

    #[test]
    fn each_kernel_has_its_own_limit() {
        let looks = Looks::new();
        let [quick, slow] = [50, 80].map(|limit| looks.kernel(ms(limit)));
        let guards = [&quick, &slow].map(Watchdog::add);
        assert_eq!(lock(&looks.0.state).look_every(), ms(50) / 4);
        quick.step_begins(1, 1, Location::caller());
        slow.step_begins(1, 2, Location::caller());
        let mut log = Vec::new();
        log.extend(looks.at(0));
        log.extend(looks.at(60));
        log.extend(looks.at(85));
        quick.step_is_over();
        log.extend(looks.at(90));
        slow.step_is_over();
        log.extend(looks.at(95));
        let report = |task, took, is_over| (task, String::new(), ms(took), is_over);
        let expected =
            [report(1, 60, false), report(2, 85, false), report(1, 90, true), report(2, 95, true)];
        assert_eq!(log, expected);
        drop(guards);
        assert_eq!(looks.watched(), 0);
    }

    #[test]
    fn a_dropped_guard_ends_the_watch() {
        let looks = Looks::new();
        let pulse = looks.kernel(LIMIT);
        // The step is not long yet, so its end is not reported.
        let watched = Watchdog::add(&pulse);
        pulse.step_begins(1, 1, Location::caller());
        looks.at(0);
        drop(watched);
        assert_eq!((looks.watched(), looks.at(100)), (0, Vec::new()));
        // The step is long, so its end is reported although the kernel is gone.
        let watched = Watchdog::add(&pulse);
        looks.at(100);
        assert_eq!(looks.at(200).len(), 1);
        drop(watched);
        assert_eq!(looks.at(201), [(1, String::new(), ms(101), true)]);
        assert_eq!((looks.watched(), looks.at(300)), (0, Vec::new()));
    }

    /// Starts a thread that looks like the watchdog's own, and returns its reports.
    fn reports_of(watchdog: &'static Watchdog) -> Receiver<Report> {
        let (sender, reports) = mpsc::channel();
        thread::spawn(move || {
            let mut logged = |report: Report| !report.is_logged || sender.send(report).is_ok();
            while watchdog.next_look().0.into_iter().all(&mut logged) {}
        });
        reports
    }

    #[test]
    fn a_step_is_reported_while_it_lasts() {
        let watchdog = watchdog();
        let pulse = Pulse::of(watchdog, kernel(), LIMIT);
        let _watched = Watchdog::add(&pulse);
        let reports = reports_of(watchdog);
        pulse.is_back();
        let begin = Instant::now();
        pulse.step_begins(1, 1, Location::caller());
        // The step does not end before three reports have come.
        for times in [1, 2, 4] {
            let report = reports.recv_timeout(TEST_LIMIT).unwrap();
            let passed = begin.elapsed();
            let step = &report.step;
            assert!(!is_over(&report) && step.took >= LIMIT * times && passed >= step.took);
        }
        pulse.step_is_over();
        let over = iter::repeat_with(|| reports.recv_timeout(TEST_LIMIT).unwrap());
        assert!(over.take(10).any(|report| is_over(&report)));
    }

    #[test]
    fn a_parked_watchdog_wakes() {
        let watchdog = watchdog();
        let pulses = [Pulse::of(watchdog, kernel(), LIMIT), Pulse::of(watchdog, kernel(), LIMIT)];
        let _guards = pulses.each_ref().map(Watchdog::add);
        let reports = reports_of(watchdog);
        for step in 0..4 {
            let since = Instant::now();
            while !watchdog.is_parked.load(Ordering::SeqCst) {
                assert!(since.elapsed() < TEST_LIMIT, "all kernels are asleep");
                thread::yield_now();
            }
            let pulse = &pulses[step % 2];
            pulse.is_back();
            pulse.step_begins(step as u64, 1, Location::caller());
            assert!(!is_over(&reports.recv_timeout(TEST_LIMIT).unwrap()));
            pulse.step_is_over();
            pulse.sleeps();
            while !is_over(&reports.recv_timeout(TEST_LIMIT).unwrap()) {}
        }
    }

    /// Panics at the first event, and keeps the others.
    struct PanicsOnce(AtomicBool, Mutex<Sender<String>>);

    impl Subscriber for PanicsOnce {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn event(&self, event: &Event<'_>) {
            struct Text(String);
            impl tracing::field::Visit for Text {
                fn record_debug(
                    &mut self,
                    field: &tracing::field::Field,
                    value: &dyn std::fmt::Debug,
                ) {
                    self.0 += &format!("{field}={value:?} ");
                }
            }
            if self.0.swap(false, Ordering::Relaxed) {
                panic!("a subscriber that panics");
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            // The test may be over.
            let _ = lock(&self.1).send(text.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_panicking_subscriber_does_not_stop_reports() {
        let (sender, events) = mpsc::channel();
        let subscriber = PanicsOnce(AtomicBool::new(true), Mutex::new(sender));
        // A process has one watchdog thread and one global subscriber.
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let pulse = Pulse::new(kernel(), LIMIT);
        let watched = watch(&pulse);
        pulse.is_back();
        pulse.show_name(7, "parser");
        let place = Location::caller();
        pulse.step_begins(1, 7, place);
        let event = events.recv_timeout(TEST_LIMIT).unwrap();
        pulse.step_is_over();
        drop(watched);
        let about = format!("task=7 name=\"parser\" spawned_at={place} took=");
        for part in [&*about, "message=a step takes long: the kernel's other tasks have to wait"] {
            assert!(event.contains(part), "{part}: {event}");
        }
        let over = iter::repeat_with(|| events.recv_timeout(TEST_LIMIT).unwrap());
        let over = over.take(10).find(|event| event.contains("message=a long step is over"));
        let over = over.expect("the end is reported after the kernel is gone, too");
        assert!(over.contains(&about), "{over}");
    }
}

#[cfg(pikake_shuttle)]
mod model {
    use std::collections::BTreeMap;

    use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use shuttle::sync::mpsc::{self, Sender};
    use shuttle::thread::{self, JoinHandle};

    use super::*;
    use crate::threads::Instant;

    /// The number of schedules for each program.
    const SCHEDULES: usize = 3_000;

    const LIMIT: Duration = Duration::from_secs(1);

    #[track_caller]
    fn check(program: impl Fn() + Send + Sync + 'static) {
        shuttle::check_random(program, SCHEDULES);
    }

    /// A watchdog's thread. The thread ends at the first look that finds this number of kernels
    /// ended. One kernel stays awake, so this look happens.
    fn look_until(
        watchdog: &'static Watchdog,
        ended: &Arc<AtomicUsize>,
        kernels: usize,
        reports: Sender<Report>,
    ) -> JoinHandle<()> {
        let ended = ended.clone();
        thread::spawn(move || {
            while ended.load(Ordering::SeqCst) < kernels {
                watchdog.next_look().0.into_iter().for_each(|report| {
                    // The kernel may have dropped its receiver.
                    let _ = reports.send(report);
                });
            }
        })
    }

    /// After a lost wake-up the kernel waits for a report of a parked watchdog. The model checker
    /// reports that deadlock as a failure.
    #[test]
    fn a_parked_watchdog_loses_no_wake_up() {
        check(|| {
            let (watchdog, ended) = (watchdog(), Arc::new(AtomicUsize::new(0)));
            let (sender, reports) = mpsc::channel();
            let pulse = Pulse::of(watchdog, kernel(), LIMIT);
            let _watched = Watchdog::add(&pulse);
            let looks = look_until(watchdog, &ended, 1, sender);
            for step in 0..3 {
                pulse.is_back();
                pulse.step_begins(step, step, Location::caller());
                while reports
                    .recv()
                    .is_ok_and(|report| report.step.task.0 != step || is_over(&report))
                {
                }
                pulse.step_is_over();
                pulse.sleeps();
                while reports.recv().is_ok_and(|report| !is_over(&report)) {}
            }
            pulse.is_back();
            ended.store(1, Ordering::SeqCst);
            looks.join().unwrap();
        });
    }

    #[test]
    fn two_kernels_wake_the_watchdog_at_once() {
        check(|| {
            let (watchdog, ended) = (watchdog(), Arc::new(AtomicUsize::new(0)));
            let (sender, reports) = mpsc::channel();
            let pulses = [0, 1].map(|_| Pulse::of(watchdog, kernel(), LIMIT));
            let guards = pulses.each_ref().map(Watchdog::add);
            let looks = look_until(watchdog, &ended, 2, sender);
            let is_reported = [0, 1].map(|_| Arc::new(AtomicBool::new(false)));
            let threads: Vec<_> = pulses
                .iter()
                .zip(&is_reported)
                .enumerate()
                .map(|(task, (pulse, is_reported))| {
                    let (pulse, is_reported, ended) =
                        (pulse.clone(), is_reported.clone(), ended.clone());
                    thread::spawn(move || {
                        pulse.is_back();
                        pulse.sleeps();
                        pulse.is_back();
                        pulse.step_begins(1, task as u64, Location::caller());
                        while !is_reported.load(Ordering::SeqCst) {
                            thread::park();
                        }
                        pulse.step_is_over();
                        ended.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            for report in reports {
                is_reported[report.step.task.0 as usize].store(true, Ordering::SeqCst);
                threads[report.step.task.0 as usize].thread().unpark();
            }
            looks.join().unwrap();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            drop(guards);
        });
    }

    #[test]
    fn no_report_mixes_two_steps() {
        check(|| {
            let watchdog = watchdog();
            let pulse = Pulse::of(watchdog, kernel(), LIMIT);
            let _watched = Watchdog::add(&pulse);
            let looks = thread::spawn(|| {
                let mut reports = Vec::new();
                for _ in 0..6 {
                    reports.extend(lock(&watchdog.state).look(Instant::now()));
                }
                reports
            });
            let places = [Location::caller(), Location::caller()];
            assert_ne!(places[0], places[1]);
            for step in 0..4 {
                pulse.show_name(step, &step.to_string());
                pulse.step_begins(step, step, places[step as usize % 2]);
                thread::yield_now();
                pulse.step_is_over();
            }
            for report in looks.join().unwrap() {
                assert_eq!(*report.step.name, *report.step.task.to_string());
                assert_eq!(report.step.spawned_at, places[report.step.task.0 as usize % 2]);
            }
        });
    }

    #[test]
    fn a_long_steps_end_is_reported_once() {
        check(|| {
            let (watchdog, ended) = (watchdog(), Arc::new(AtomicUsize::new(0)));
            let (sender, reports) = mpsc::channel();
            let awake = Pulse::of(watchdog, kernel(), LIMIT);
            awake.is_back();
            let _watched = Watchdog::add(&awake);
            let looks = look_until(watchdog, &ended, 2, sender);
            let threads = [1, 2].map(|task| {
                let ended = ended.clone();
                thread::spawn(move || {
                    let pulse = Pulse::of(watchdog, kernel(), LIMIT);
                    pulse.is_back();
                    let watched = Watchdog::add(&pulse);
                    for step in 0..2 {
                        pulse.sleeps();
                        pulse.is_back();
                        pulse.step_begins(step, 10 * task + step, Location::caller());
                        // Enough for a few looks in most schedules.
                        (0..20).for_each(|_| thread::yield_now());
                        pulse.step_is_over();
                    }
                    drop(watched);
                    ended.fetch_add(1, Ordering::SeqCst);
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            looks.join().unwrap();
            let rest = lock(&watchdog.state).look(Instant::now());
            let mut ends: BTreeMap<u64, usize> = BTreeMap::new();
            for report in reports.into_iter().chain(rest) {
                *ends.entry(report.step.task.0).or_default() += usize::from(is_over(&report));
            }
            assert!(ends.values().all(|ends| *ends == 1), "{ends:?}");
            assert_eq!(lock(&watchdog.state).entries.len(), 1, "the kernel that is awake");
        });
    }
}
