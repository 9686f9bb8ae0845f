//! The text of answers, compared whole.

use pikake_console::answer::Answer;
use pikake_console::groups::{Sort, sort};
use pikake_console::model::{
    Blocked, BlockedSteps, Edge, Event, GoesOn, Graph, Kernel, KernelStats, PeerStats, Process,
    ProcessStats, ProfileRow, Samples, Scope, Stack, State, Step, Task, TaskKey, Wait, What,
};
use pikake_console::protocol::Part;
use pikake_console::text::{self, Ids, bytes, duration};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;

fn kernel(id: u32) -> Kernel {
    Kernel { id, thread: "main".to_owned(), tid: Some(4711), stuck: None, stale: None }
}

fn key(task: u64) -> TaskKey {
    TaskKey { kernel: 1, task }
}

fn task(id: u64, name: &str, parent: Option<u64>, state: State) -> Task {
    Task {
        id: key(id),
        name: name.to_owned(),
        parent: parent.map(key),
        state,
        since: Some(1_200 * MS),
        steps: 3,
        busy: 0,
        longest: 0,
        spawned_at: format!("src/main.rs:{id}:5"),
        future: "app::run::{closure}".to_owned(),
        bytes: 1_300,
        cancelled: None,
        goes_on: None,
        waits: Vec::new(),
    }
}

fn wait(trap: &str, line: u32) -> Wait {
    Wait {
        trap: trap.to_owned(),
        place: format!("src/main.rs:{line}:9"),
        about: None,
        owners: Vec::new(),
        scopes: Vec::new(),
    }
}

fn edge(from: u64, to: u64, line: u32) -> Edge {
    Edge {
        from: key(from),
        to: key(to),
        trap: "park".to_owned(),
        place: format!("src/main.rs:{line}:9"),
        about: Some(format!("mutex `m{to}`, held by task {to}")),
    }
}

/// A main task, two children, and a task whose parent has ended.
fn family() -> Answer {
    let mut main = task(1, "main", None, State::Waiting);
    main.waits = vec![wait("join", 20)];
    let mut worker = task(2, "worker", Some(1), State::Waiting);
    let deadline = Scope { left: Some(340_000_000), set_at: Some("src/main.rs:31:5".to_owned()) };
    let passed = Scope { left: Some(-12_000), set_at: None };
    let shield = Scope { left: None, set_at: None };
    worker.waits = vec![
        Wait {
            about: Some("mutex `accounts`, held by task 3".to_owned()),
            owners: vec![key(3)],
            scopes: vec![deadline, shield],
            ..wait("park", 33)
        },
        Wait { scopes: vec![passed], ..wait("sleep", 34) },
    ];
    (worker.busy, worker.longest) = (340 * US, 120 * US);
    let mut child = task(3, "", Some(2), State::Ready);
    child.since = None;
    let mut second = task(4, "a name that goes on and on without any end", Some(1), State::New);
    second.cancelled = Some("closing time".to_owned());
    let mut orphan = task(9, "orphan", Some(7), State::Waiting);
    orphan.waits = vec![Wait {
        place: "/home/a/.cargo/registry/src/index.crates.io-6f17/hyper-1.12.0/src/client/legacy/pool.rs:12:5"
            .to_owned(),
        ..wait("park", 0)
    }];
    let tasks = vec![main, worker, child, second, orphan];
    Answer { kernels: vec![kernel(1)], tasks, ..Answer::default() }
}

#[test]
fn durations_have_two_digits() {
    let cases = [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.0 µs"),
        (9_999, "9.9 µs"),
        (12_345, "12 µs"),
        (340 * MS, "340 ms"),
        (999_999_999, "999 ms"),
        (1_250 * MS, "1.2 s"),
        (59 * SECOND, "59 s"),
        (125 * SECOND, "2 min 5 s"),
        (11_520 * SECOND, "3 h 12 min"),
        (183_600 * SECOND, "2 d 3 h"),
    ];
    for (nanoseconds, text) in cases {
        assert_eq!(duration(nanoseconds), text, "{nanoseconds}");
    }
    assert_eq!(
        [0, 1_023, 1_024, 12 << 20, u64::MAX].map(bytes)[..4],
        ["0 B", "1023 B", "1.0 KiB", "12 MiB"]
    );
}

#[test]
fn ids_name_the_kernel_if_there_are_two() {
    let one = Ids::of(&[kernel(2)]);
    let task = TaskKey { kernel: 2, task: 17 };
    assert_eq!(
        (one.show(task), one.parse("17"), one.parse("2.17")),
        ("17".to_owned(), Ok(task), Ok(task))
    );
    let two = Ids::of(&[kernel(1), kernel(2)]);
    assert_eq!((two.show(task), two.parse("2.17")), ("2.17".to_owned(), Ok(task)));
    let wrong = Err("`17` is no task: write KERNEL.TASK, as `1.17`".to_owned());
    assert_eq!(two.parse("17"), wrong);
    assert!(one.parse("seventeen").is_err());
    // Tasks of a kernel that began since.
    assert_eq!(one.show(TaskKey { kernel: 3, task: 1 }), "3.1");
}

#[test]
fn processes_are_a_table() {
    let process = Process {
        pid: 4711,
        program: "shop".to_owned(),
        pikake: "0.1.0".to_owned(),
        protocol: 1,
        age: 90 * SECOND,
    };
    let other = Process { pid: 12, program: "a\u{1b}[2J".to_owned(), ..process.clone() };
    let expected = " pid  program     tasks         age
4711  shop           17  1 min 30 s
  12  a\\u{1b}[2J      -  1 min 30 s
";
    assert_eq!(text::processes(&[(process, Some(17)), (other, None)]), expected);
}

#[test]
fn ps_is_a_table() {
    let expected = "\
id  name                              state    waits for                                            since  steps    busy  spawned at
 1  main                              waiting  join at src/main.rs:20:9                             1.2 s      3       -  src/main.rs:1:5
 2  worker                            waiting  park at src/main.rs:33:9 (+1)                        1.2 s      3  340 µs  src/main.rs:2:5
 3  -                                 ready                                                             -      3       -  src/main.rs:3:5
 4  a name that goes…without any end  new                                                           1.2 s      3       -  src/main.rs:4:5
 9  orphan                            waiting  park at hyper-1.12.0/src/client/legacy/pool.rs:12:5  1.2 s      3       -  src/main.rs:9:5
5 tasks: 1 new, 1 ready, 3 waiting
";
    assert_eq!(text::ps(&family(), false, None), expected);
    assert_eq!(
        text::ps(&Answer::default(), false, None),
        "id  name  state  waits for  since  steps  busy  spawned at\n0 tasks\n"
    );
}

#[test]
fn tree_shows_children_scopes_and_orphans() {
    let expected = "\
1 `main`: waiting for 1.2 s, join at src/main.rs:20:9
├─ 2 `worker`: waiting for 1.2 s
│  │  park at src/main.rs:33:9 (mutex `accounts`, held by task 3)
│  │    in a deadline with 340 ms left, set at src/main.rs:31:5
│  │    in a shield
│  │  sleep at src/main.rs:34:9
│  │    in a deadline that passed 12 µs ago
│  └─ 3: ready
└─ 4 `a name that goes…without any end`: new, asked to end: closing time
9 `orphan` (task 7, its parent, has ended): waiting for 1.2 s, park at hyper-1.12.0/src/client/legacy/pool.rs:12:5
";
    assert_eq!(text::tree(&family()), expected);
}

/// Each task of a chain is the child of the one before.
#[test]
fn tree_of_a_long_chain_stays_narrow() {
    let chain = |length: u64| {
        let parent = |id: u64| (id > 1).then(|| id - 1);
        (1..=length).map(move |id| task(id, "", parent(id), State::Ready))
    };
    let answer =
        Answer { kernels: vec![kernel(1)], tasks: chain(30_000).collect(), ..Answer::default() };
    let tree = text::tree(&answer);
    assert_eq!(tree.lines().count(), 30_000);
    let last = tree.lines().last().unwrap();
    assert_eq!(last.trim_start(), "└─ 30000 (child of task 29999): ready");
    assert_eq!(last.len() - last.trim_start().len(), 23 * 3);
}

#[test]
fn where_shows_a_task_in_full() {
    let mut answer = family();
    let expected = "\
task 2 `worker`
  state       waiting for 1.2 s
  parent      task 1 `main`
  spawned at  src/main.rs:2:5
  future      app::run::{closure}, 1.2 KiB
  steps       3, 340 µs in all, the longest 120 µs
  waits in park at src/main.rs:33:9
    for mutex `accounts`, held by task 3
    until task 3 ends the wait
    in a deadline with 340 ms left, set at src/main.rs:31:5
    in a shield
  waits in sleep at src/main.rs:34:9
    in a deadline that passed 12 µs ago
";
    let all = text::where_(&answer);
    assert!(all.contains(expected), "{all}");
    answer.tasks.retain(|task| task.id == key(4));
    let caught_at = "src/main.rs:9:9".to_owned();
    answer.tasks[0].goes_on = Some(GoesOn { asked: 3_200 * MS, caught_at, waits: 27 });
    let expected = "\
task 4 `a name that goes…without any end`
  state       new, last stepped 1.2 s ago
  cancelled   asked to end: closing time
  goes on     cancelled 3.2 s ago, caught at src/main.rs:9:9, 27 waits since
  parent      task 1
  spawned at  src/main.rs:4:5
  future      app::run::{closure}, 1.2 KiB
  steps       3
";
    assert_eq!(text::where_(&answer), expected);
    let goes_on = ", cancelled 3.2 s ago, goes on";
    let list = text::ps(&answer, false, None);
    assert!(list.contains(&format!("new{goes_on}")), "{list}");
    assert!(text::tree(&answer).contains(&format!("closing time{goes_on}")));
}

/// Two tasks in a deadlock, one that waits for them, and one that waits for itself.
fn deadlock() -> Answer {
    let mut stuck = task(8, "select", None, State::Waiting);
    stuck.waits =
        vec![Wait { about: Some("mutex `m`, held by task 8".to_owned()), ..wait("park", 40) }];
    let tasks = vec![
        task(3, "ann", None, State::Waiting),
        task(4, "bob", None, State::Waiting),
        task(5, "eve", None, State::Waiting),
        stuck,
    ];
    let graph = Graph {
        edges: vec![edge(3, 4, 10), edge(4, 3, 12), edge(5, 3, 14)],
        deadlocks: vec![vec![key(3), key(4)]],
        unpolled: vec![key(8)],
        ..Graph::default()
    };
    Answer { kernels: vec![kernel(1)], tasks, graph: Some(graph), ..Answer::default() }
}

#[test]
fn waits_name_deadlocks_first() {
    let expected = "\
DEADLOCK: 2 tasks wait for each other in a circle
  task 3 `ann` waits for task 4 `bob`: park at src/main.rs:10:9 (mutex `m4`, held by task 4)
  task 4 `bob` waits for task 3 `ann`: park at src/main.rs:12:9 (mutex `m3`, held by task 3)
FUTURELOCK: task 8 `select` waits for itself
  Another future of the task can end the wait, and nothing polls that future.
  park at src/main.rs:40:9 (mutex `m`, held by task 8)
task 5 `eve` waits for task 3 `ann`: park at src/main.rs:14:9 (mutex `m3`, held by task 3)
";
    assert_eq!(text::waits(&deadlock()), expected);
    let nothing = Answer { graph: Some(Graph::default()), ..Answer::default() };
    assert_eq!(text::waits(&nothing), "no task waits for another one, as far as is known\n");
}

/// A circle of more tasks than a console tells has an end, and no edge back from there.
#[test]
fn waits_count_the_rest_of_a_long_circle() {
    let mut answer = deadlock();
    let graph = answer.graph.as_mut().unwrap();
    graph.edges.remove(1);
    graph.left_out = vec![(key(3), 99_998)];
    let expected = "\
DEADLOCK: 100000 tasks wait for each other in a circle
  task 3 `ann` waits for task 4 `bob`: park at src/main.rs:10:9 (mutex `m4`, held by task 4)
  99998 more tasks, the last of which waits for task 3 `ann`
FUTURELOCK";
    let text = text::waits(&answer);
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn dot_marks_deadlocks() {
    let mut answer = deadlock();
    answer.tasks[2].name = "a \"quoted\" name".to_owned();
    let expected = r#"digraph waits {
  node [shape=box]
  "1.3" [label="3 `ann`" color=red]
  "1.4" [label="4 `bob`" color=red]
  "1.5" [label="5 `a \"quoted\" name`"]
  "1.8" [label="8 `select`" color=orange]
  "1.3" -> "1.4" [label="park at src/main.rs:10:9 (mutex `m4`, held by task 4)" color=red]
  "1.4" -> "1.3" [label="park at src/main.rs:12:9 (mutex `m3`, held by task 3)" color=red]
  "1.5" -> "1.3" [label="park at src/main.rs:14:9 (mutex `m3`, held by task 3)"]
}
"#;
    assert_eq!(text::dot(&answer), expected);
}

fn step() -> Step {
    Step {
        task: TaskKey { kernel: 1, task: 17 },
        name: "parser".to_owned(),
        spawned_at: "src/main.rs:12:5".to_owned(),
        lasts: 3_250 * MS,
    }
}

#[test]
fn stuck_kernels_are_on_top() {
    let mut answer = Answer { kernels: vec![kernel(1), kernel(2), kernel(3)], ..Answer::default() };
    answer.kernels[0].stuck = Some(step());
    answer.kernels[0].stale = Some(1_200 * MS);
    answer.kernels[2].stuck = Some(Step { name: String::new(), ..step() });
    answer.kernels[2].tid = None;
    answer.tasks = vec![Task { waits: Vec::new(), ..task(1, "main", None, State::Ready) }];
    let expected = "\
! kernel 1 on thread `main` (4711) is stuck: task 1.17 `parser`, spawned at src/main.rs:12:5, has been in one step for 3.2 s; its tasks are as they were 1.2 s ago
! kernel 3 on thread `main` is stuck: task 1.17, spawned at src/main.rs:12:5, has been in one step for 3.2 s; its tasks are not known
";
    assert_eq!(text::warnings(&answer), expected);
    let ps = |answer: &Answer| text::ps(answer, false, None);
    for text in [ps, text::tree, text::where_, text::waits, text::stats] {
        let text = text(&answer);
        assert!(text.starts_with(expected), "{text}");
    }
    answer.kernels.truncate(1);
    answer.kernels[0].stuck = None;
    let expected = "! kernel 1 on thread `main` (4711) does not answer; its tasks are as they were 1.2 s ago\n";
    assert_eq!(text::warnings(&answer), expected);
}

#[test]
fn stats_show_figures_and_late_timers() {
    let process = ProcessStats {
        resident_bytes: Some(12 << 20),
        descriptors: Some(34),
        descriptor_limit: Some(1024),
        threads: None,
        user_time: 1_200 * MS,
        system_time: 340 * MS,
        major_faults: 2,
        voluntary_switches: 12,
        involuntary_switches: 3,
    };
    let stats = KernelStats {
        kernel: 1,
        tasks: 17,
        ready: 2,
        spawned: 120,
        future_bytes: 12 << 10,
        timers: 3,
        waiters: 5,
        sockets: 2,
        threads: 4,
        idle_threads: 1,
        queued_closures: 1,
        steps: 1_234,
        polls: 34,
        messages: 12,
        longest_step: 1_200 * US,
        lateness: vec![0, 0, 5, 80, 0, 1, 0],
        peers: Some(PeerStats {
            late: 60 * US,
            late_max: 120 * MS,
            offers_made: 7,
            offers_taken: 2,
        }),
    };
    let expected = "\
process
  memory          12 MiB
  descriptors     34 of 1024
  processor time  1.2 s in the program, 340 ms in the system
  page faults     2 from the disk
  switches        12 voluntary, 3 involuntary
kernel 1
  tasks           17, 2 ready, 12 KiB of futures; 120 spawned so far
  steps           1234, the longest 1.2 ms
  tasks are late  by 60 µs, at most by 120 ms in the last minute
  offers          7 made, 2 of others taken
  timers          3
  waiters         5
  sockets         2
  helper threads  4, 1 of them idle; 1 closure queued
  driver polls    34
  messages        12
  timers were late by less than
          4.0 µs   5  ###
          8.0 µs  80  ########################################
           16 µs   0
           32 µs   1  #
";
    let answer = Answer { process: Some(process), stats: vec![stats], ..Answer::default() };
    assert_eq!(text::stats(&answer), expected);
}

#[test]
fn events_are_lines() {
    let event = |at: u64, task: u64, what: What| Event { at, task: key(task), what };
    let at = ("park".to_owned(), "src/main.rs:33:9".to_owned());
    let stepped =
        |took| What::Stepped { took, trap: Some(at.0.clone()), place: Some(at.1.clone()) };
    let first = vec![
        event(1_203_412_999, 2, What::Spawned),
        event(1_203_500_000, 2, stepped(Some(12 * US))),
        event(1_203_700_000, 2, What::Stepped { took: None, trap: None, place: None }),
    ];
    let exit = "returned".to_owned();
    let second = vec![
        event(1_203_600_000, 1, stepped(None)),
        event(21_000_000_000, 2, What::Ended { took: Some(2 * US), exit }),
    ];
    let parts = [Part::Kernel(kernel(1)), Part::Events(first), Part::Events(second), Part::Done];
    let answer = Answer::of(parts).unwrap();
    let expected = "    1.203412 s  task 2: spawned
    1.203500 s  task 2: stepped 12 µs, park at src/main.rs:33:9
    1.203600 s  task 1: stepped, park at src/main.rs:33:9
    1.203700 s  task 2: stepped
   21.000000 s  task 2: returned, the last step 2.0 µs
";
    assert_eq!(text::events(&answer), expected);
    assert_eq!(text::events(&Answer::default()), "no events\n");
}

#[test]
fn blocked_shows_the_stack_of_the_task() {
    let frames = [
        "main (src/main.rs:3)",
        "pikake_traps::cell::TaskCell<F>::poll (traps/src/cell.rs:243)",
        "app::run (src/run.rs:7)",
        "parse (src/parse.rs:14)",
    ];
    let stack = Stack {
        thread: "main".to_owned(),
        frames: frames.map(str::to_owned).to_vec(),
        count: 1,
        addresses: Vec::new(),
    };
    let thread = Some("running".to_owned());
    let blocked = Blocked {
        kernel: 1,
        step: step(),
        stack: Some(stack),
        no_stack: None,
        thread,
        modules: Vec::new(),
        ago: None,
    };
    let no_stack = Some("there is no feature".to_owned());
    let unread = Blocked { stack: None, no_stack, thread: None, ..blocked.clone() };
    let answer =
        Answer { kernels: vec![kernel(1)], blocked: vec![blocked, unread], ..Answer::default() };
    let expected = "\
! kernel 1 is stuck: task 17 `parser`, spawned at src/main.rs:12:5, has been in one step for 3.2 s
  its thread: running
  stack of thread `main`, the innermost function first:
    parse (src/parse.rs:14)
    app::run (src/run.rs:7)
    … and 2 functions of the kernel
! kernel 1 is stuck: task 17 `parser`, spawned at src/main.rs:12:5, has been in one step for 3.2 s
  no stack: there is no feature
";
    assert_eq!(text::blocked(&answer), expected);
    let over = Blocked { ago: Some(12 * SECOND), ..answer.blocked[1].clone() };
    let answer = Answer { blocked: vec![over], ..answer };
    let expected = "\
no kernel is in one step for too long

12 s ago, task 17 `parser`, spawned at src/main.rs:12:5, was in one step for 3.2 s
  no stack: there is no feature
";
    assert_eq!(text::blocked(&answer), expected);
    assert_eq!(text::blocked(&Answer::default()), "no kernel is in one step for too long\n");
}

#[test]
fn profile_lists_the_busiest_first() {
    let row = |name: &str, busy: u64, waits: &[(&str, u64)]| ProfileRow {
        name: name.to_owned(),
        spawned_at: "src/main.rs:12:5".to_owned(),
        spawned: 2,
        steps: 10,
        busy,
        longest: busy / 2,
        waits: waits.iter().map(|(trap, count)| ((*trap).to_owned(), *count)).collect(),
    };
    let stack = |frames: &[&str], count: u64| Stack {
        thread: "main".to_owned(),
        frames: frames.iter().map(|frame| (*frame).to_owned()).collect(),
        count,
        ..Stack::default()
    };
    let stacks =
        vec![stack(&["main", "parse"], 2), stack(&["main"], 5), stack(&["run", "parse"], 4)];
    let rows = vec![row("", 250 * US, &[]), row("parser", 750 * US, &[("park", 1), ("sleep", 9)])];
    let samples = Some(Samples { frequency: 99, stacks, ..Samples::default() });
    let answer = Answer { profile: rows, samples, ..Answer::default() };
    let expected = "\
name     share    busy  steps  longest  spawned  spawned at        waits
parser  75.0 %  750 µs     10   375 µs        2  src/main.rs:12:5  sleep 9, park 1
-       25.0 %  250 µs     10   125 µs        2  src/main.rs:12:5

11 samples of processor time, 99 Hz
 share  samples  function
54.5 %        6  parse
45.5 %        5  main
";
    assert_eq!(text::profile(&answer), expected);
    let blocked = |time: u64, count: u64, function: &str| BlockedSteps {
        name: "writer".to_owned(),
        spawned_at: "src/main.rs:9:5".to_owned(),
        time,
        stack: stack(
            &["std::main", function, "std::thread::sleep", "clock_nanosleep (nap.c:1)"],
            count,
        ),
    };
    let blocked = vec![
        blocked(SECOND, 99, "app::write (src/main.rs:3)"),
        blocked(10 * US, 1, "read"),
        blocked(SECOND / 2, 49, "app::write (src/main.rs:3)"),
    ];
    let samples = Some(Samples { frequency: 99, blocked, ..Samples::default() });
    let answer = Answer { samples, ..Answer::default() };
    let expected = "\
name  share  busy  steps  longest  spawned  spawned at  waits

0 samples of processor time, 99 Hz
share  samples  function

steps were blocked for 1.5 s: 149 samples of threads that slept in a step
blocked  samples  task    spawned at       function
  1.5 s      148  writer  src/main.rs:9:5  app::write (src/main.rs:3), in clock_nanosleep
  10 µs        1  writer  src/main.rs:9:5  clock_nanosleep (nap.c:1)
";
    assert_eq!(text::profile(&answer), expected);
    let none = Some("there is no feature".to_owned());
    let without =
        Answer { samples: Some(Samples { none, ..Samples::default() }), ..Answer::default() };
    let expected = "\
name  share  busy  steps  longest  spawned  spawned at  waits

no samples: there is no feature
";
    assert_eq!(text::profile(&without), expected);
}

#[test]
fn dump_has_tree_and_deadlocks() {
    let process = Process {
        pid: 4711,
        program: "shop".to_owned(),
        pikake: "0.1.0".to_owned(),
        protocol: 1,
        age: 90 * SECOND,
    };
    let mut answer = deadlock();
    answer.tasks.truncate(2);
    answer.graph.as_mut().unwrap().unpolled.clear();
    answer.graph.as_mut().unwrap().edges.pop();
    let expected = "\
pikake: shop (process 4711, up 1 min 30 s)
3 `ann`: waiting for 1.2 s
4 `bob`: waiting for 1.2 s
2 tasks: 2 waiting
DEADLOCK: 2 tasks wait for each other in a circle
  task 3 `ann` waits for task 4 `bob`: park at src/main.rs:10:9 (mutex `m4`, held by task 4)
  task 4 `bob` waits for task 3 `ann`: park at src/main.rs:12:9 (mutex `m3`, held by task 3)
";
    assert_eq!(text::dump(&process, &answer), expected);
}

#[test]
fn failed_answer_is_an_error() {
    let parts = [Part::Kernel(kernel(1)), Part::Failed("no task 17".to_owned())];
    assert_eq!(Answer::of(parts), Err("no task 17".to_owned()));
}

/// Ten thousand connections, each with its peer, and the main task.
fn crowd() -> Answer {
    let connection = |id: u64| Task {
        spawned_at: "src/main.rs:7:5".to_owned(),
        waits: vec![wait("read_wait", 9)],
        since: Some(id * US),
        busy: id,
        ..task(id, &format!("connection 10.0.0.1:{id}"), None, State::Waiting)
    };
    let main = task(1, "main", None, State::Ready);
    let tasks = std::iter::once(main).chain((2..=10_001).map(connection)).collect();
    Answer { kernels: vec![kernel(1)], tasks, ..Answer::default() }
}

#[test]
fn alike_tasks_are_one_line() {
    let crowd = crowd();
    let folded = text::ps(&crowd, false, None);
    let lines: Vec<&str> = folded.lines().collect();
    assert_eq!(lines.len(), 4, "{folded}");
    assert!(lines[2].starts_with("2…  connection ×10000  waiting  read_wait at "), "{folded}");
    // The longest time, and the sum of the steps.
    assert!(lines[2].contains("  10 ms  30000  "), "{folded}");
    assert_eq!(lines[3], "10001 tasks: 1 ready, 10000 waiting");
    assert_eq!(text::ps(&crowd, true, None).lines().count(), 10_003);
    let some = text::ps(&crowd, true, Some(3));
    assert_eq!(some.lines().nth(4), Some("… and 9998 lines more"), "{some}");

    let groups = text::ps_groups(&crowd, None);
    let lines: Vec<&str> = groups.lines().collect();
    assert!(lines[1].starts_with("10000  connection  10000 waiting  read_wait at "), "{groups}");
    assert!(lines[2].starts_with("    1  main        1 ready "), "{groups}");
    let one = text::ps_groups(&crowd, Some(1));
    assert_eq!(one.lines().nth(2), Some("… and 1 group more"), "{one}");
}

#[test]
fn tasks_are_sorted_by_each_key() {
    let first = |by| {
        let mut tasks = crowd().tasks;
        sort(&mut tasks, by);
        tasks[0].id.task
    };
    let keys = [Sort::Id, Sort::Name, Sort::Since, Sort::Steps, Sort::Busy];
    assert_eq!(keys.map(first), [1, 10, 1, 1, 10_001]);
}

#[test]
fn alike_waits_are_one_line() {
    let tasks = (1..=6).map(|id| {
        let spawned_at = "src/main.rs:7:5".to_owned();
        Task { spawned_at, ..task(id, "connection", None, State::Waiting) }
    });
    let alike = |from: u64| Edge { from: key(from), ..edge(2, 1, 20) };
    let edges = |count: u64| {
        let graph = Graph { edges: (2..2 + count).map(alike).collect(), ..Graph::default() };
        let (kernels, tasks) = (vec![kernel(1)], tasks.clone().collect());
        text::waits(&Answer { kernels, tasks, graph: Some(graph), ..Answer::default() })
    };
    assert_eq!(edges(3).lines().count(), 3);
    let expected = "4 tasks like task 2 `connection` wait for task 1 `connection`: \
                    park at src/main.rs:20:9 (mutex `m1`, held by task 1)\n";
    assert_eq!(edges(4), expected);
}

#[test]
fn paths_are_shown_as_crate_and_file() {
    let cases = [
        ("src/main.rs:1:2", "src/main.rs:1:2"),
        ("/home/me/app/src/main.rs", "/home/me/app/src/main.rs"),
        ("/home/me/.cargo/registry/src/index-1/slab-0.4.12/src/lib.rs", "slab-0.4.12/src/lib.rs"),
        (
            "/home/me/.cargo/git/checkouts/pikake-914f8a7c956/8acf80b/net/src/serve.rs:7:1",
            "net/src/serve.rs:7:1",
        ),
        ("/rustc/0123/library/std/src/thread.rs", "library/std/src/thread.rs"),
        ("/rustc/", "/rustc/"),
    ];
    for (path, shown) in cases {
        assert_eq!(text::short_path(path), shown);
    }
}
