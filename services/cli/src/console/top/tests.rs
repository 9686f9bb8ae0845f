//! What is drawn, compared whole, and what keys do.

use std::time::Duration;

use pikake::console::answer::Answer;
use pikake::console::model::{
    Kernel, KernelStats, Lock, PeerStats, Process, State, Step, Task, TaskKey, Wait,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::draw;
use super::view::{Action, Look, View};

const MS: u64 = 1_000_000;

fn key(task: u64) -> TaskKey {
    TaskKey { kernel: 1, task }
}

fn task(id: u64, name: &str, steps: u64, busy: u64, since: u64) -> Task {
    let wait = Wait {
        trap: "park".to_owned(),
        place: format!("src/main.rs:{id}:9"),
        about: None,
        owners: Vec::new(),
        scopes: Vec::new(),
    };
    Task {
        id: key(id),
        name: name.to_owned(),
        parent: None,
        state: State::Waiting,
        since: Some(since),
        steps,
        busy,
        longest: busy,
        spawned_at: "src/main.rs:12:5".to_owned(),
        future: "app::run".to_owned(),
        bytes: 100,
        cancelled: None,
        goes_on: None,
        waits: vec![wait],
    }
}

fn look(seconds: u64, steps: u64, tasks: Vec<Task>) -> Look {
    let kernel =
        Kernel { id: 1, thread: "main".to_owned(), tid: Some(4711), stuck: None, stale: None };
    let stats = KernelStats {
        kernel: 1,
        tasks: tasks.len() as u64,
        ready: 1,
        steps,
        timers: 1,
        sockets: 2,
        longest_step: 12 * MS,
        ..KernelStats::default()
    };
    let tasks = Answer { kernels: vec![kernel], tasks, ..Answer::default() };
    Look { at: Duration::from_secs(seconds), tasks, stats: vec![stats] }
}

/// A process after two looks: `parser` had a quarter of the time between them.
fn view() -> View {
    let mut view = View::new(Process {
        pid: 4711,
        program: "shop".to_owned(),
        pikake: "0.1.0".to_owned(),
        protocol: 1,
        age: 0,
    });
    let tasks = |busy: u64| {
        vec![
            task(1, "main", 5, 90 * MS, 9_000 * MS),
            task(2, "parser", 9, busy, 10 * MS),
            task(3, "a name that goes on and on", 700, 0, 300 * MS),
        ]
    };
    view.look(look(0, 100, tasks(0)));
    view.look(look(2, 1_300, tasks(500 * MS)));
    view
}

fn press(view: &mut View, code: KeyCode) -> Action {
    view.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// The screen, without spaces at the ends of lines.
fn screen(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let shown = terminal.backend().buffer().content.chunks(usize::from(width));
    let lines = shown.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The tasks in the order of the screen.
fn order(view: &View) -> Vec<u64> {
    view.rows(0, usize::MAX).map(|task| task.id.task).collect()
}

const HEAD: &str = "\
shop (4711): 1 kernel, 3 tasks, 1 ready
600 steps/s, the longest 12 ms; 1 timer, 2 sockets, 0 helper threads
";

#[test]
fn screen_shows_the_busiest_task_first() {
    let view = view();
    let expected = "
    id  name                      state    share*    busy     steps   since  waits for
     2  parser                    waiting  25.0 %  500 ms         9   10 ms  park at src/main.rs:2:9
     1  main                      waiting   0.0 %   90 ms         5   9.0 s  park at src/main.rs:1:9
     3  a name that …s on and on  waiting   0.0 %       -       700  300 ms  park at src/main.rs:3:9

sort: b busy  s steps  t since  i id   / filter  Enter task  q end
";
    assert_eq!(screen(&view, 100, 9), format!("{HEAD}{expected}"));
}

#[test]
fn slowest_lock_is_shown() {
    let mut view = view();
    let mut look = look(9, 1, Vec::new());
    let lock = |name: &str, wait: u64| Lock {
        lock: name.to_owned(),
        longest_wait: wait,
        longest_hold: wait + MS,
        longest_holder: Some(("task 2 `slow`".to_owned(), "src/main.rs:1:1".to_owned())),
        ..Lock::default()
    };
    look.tasks.locks = vec![lock("mutex `a`", MS), lock("mutex `stock`", 790 * MS)];
    view.look(look);
    let shown = screen(&view, 100, 9);
    let line =
        "the slowest lock: mutex `stock`, waited for 790 ms, and task 2 `slow` had it for 791 ms";
    assert_eq!(shown.lines().nth(2), Some(line), "{shown}");
}

#[test]
fn cursor_is_reversed() {
    let mut view = view();
    press(&mut view, KeyCode::Down);
    let mut terminal = Terminal::new(TestBackend::new(40, 9)).unwrap();
    terminal.draw(|frame| draw(frame, &view)).unwrap();
    let buffer = terminal.backend().buffer();
    let reversed = |row: u16| {
        (0..40).all(|column| {
            buffer[(column, row)].modifier.contains(ratatui::style::Modifier::REVERSED)
        })
    };
    assert_eq!((4..7).map(reversed).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn before_the_first_answer_the_table_is_empty() {
    let view = View::new(view().process().clone());
    let expected = "\
shop (4711): 0 kernels, 0 tasks, 0 ready
- steps/s, the longest 0 ns; 0 timers, 0 s

    id  name                      state
sort: b busy  s steps  t since  i id   / f
";
    assert_eq!(screen(&view, 42, 5), expected);
    // No room at all.
    assert_eq!(screen(&view, 3, 1), "sor\n");
}

#[test]
fn stuck_kernel_is_on_top() {
    let mut view = view();
    let mut now = look(3, 1_300, vec![task(1, "main", 5, 0, 0)]);
    let kernel = &mut now.tasks.kernels[0];
    kernel.stuck = Some(Step {
        task: key(2),
        name: "parser".to_owned(),
        spawned_at: "src/main.rs:12:5".to_owned(),
        lasts: 3_200 * MS,
    });
    kernel.stale = Some(1_000 * MS);
    view.look(now);
    let screen = screen(&view, 60, 6);
    let line = screen.lines().nth(2).unwrap();
    assert_eq!(line, "! kernel 1 on thread `main` (4711) is stuck: task 2 `parser`");
}

#[test]
fn kernels_stand_side_by_side() {
    let mut view = view();
    let look = |seconds: u64, steps: [u64; 2]| {
        let mut look = look(seconds, steps[0], vec![task(1, "main", 5, 0, 0)]);
        let other = Kernel { id: 2, ..look.tasks.kernels[0].clone() };
        look.tasks.kernels.push(other);
        let peers = PeerStats { late: 0, late_max: 12 * MS, offers_made: 0, offers_taken: 40 };
        let stats =
            KernelStats { kernel: 2, steps: steps[1], peers: Some(peers), ..Default::default() };
        let peers =
            PeerStats { late: 61 * MS, late_max: 1_300 * MS, offers_made: 44, offers_taken: 0 };
        look.stats[0].peers = Some(peers);
        look.stats.push(stats);
        look
    };
    view.look(look(3, [2_000, 0]));
    view.look(look(4, [5_000, 250]));
    let expected = "
shop (4711): 2 kernels, 1 task, 1 ready
3250 steps/s, the longest 12 ms; 1 timer, 2 sockets, 0 helper threads
kernel  tasks  ready  steps/s   late  max late  offered  taken
     1      1      1     3000  61 ms     1.3 s       44      0
     2      0      0      250   0 ns     12 ms        0     40
";
    let shown = screen(&view, 100, 12);
    let shown: Vec<&str> = shown.lines().take(5).collect();
    assert_eq!(shown.join("\n"), expected.trim());
    // A kernel that does not answer has no figures.
    let mut stuck = look(5, [5_100, 0]);
    stuck.tasks.kernels[1].stuck = Some(Step {
        task: TaskKey { kernel: 2, task: 7 },
        name: String::new(),
        spawned_at: "src/main.rs:12:5".to_owned(),
        lasts: 3_200 * MS,
    });
    stuck.stats.pop();
    view.look(stuck);
    let shown = screen(&view, 100, 12);
    let line = "     2      -      -        -  3.2 s         -        -      -";
    assert_eq!(shown.lines().nth(4), Some(line));
}

#[test]
fn keys_sort_the_tasks() {
    let mut view = view();
    let orders = [('s', [3, 2, 1]), ('t', [1, 3, 2]), ('i', [1, 2, 3]), ('b', [2, 1, 3])];
    for (code, expected) in orders {
        assert_eq!(press(&mut view, KeyCode::Char(code)), Action::Stay);
        assert_eq!(order(&view), expected, "{code}");
    }
    press(&mut view, KeyCode::Char('s'));
    let head = screen(&view, 80, 9).lines().nth(3).unwrap().to_owned();
    assert_eq!(
        head,
        "    id  name                      state     share    busy    steps*   since  wai"
    );
}

#[test]
fn cursor_stays_on_its_task() {
    let mut view = view();
    press(&mut view, KeyCode::Down);
    assert_eq!((view.cursor(), order(&view)), (1, vec![2, 1, 3]));
    press(&mut view, KeyCode::Char('s'));
    assert_eq!((view.cursor(), order(&view)), (2, vec![3, 2, 1]));
    press(&mut view, KeyCode::Down);
    assert_eq!(view.cursor(), 2);
    press(&mut view, KeyCode::Home);
    // The first row is whichever task is the first.
    press(&mut view, KeyCode::Char('i'));
    assert_eq!(view.cursor(), 0);
    for (code, row) in
        [(KeyCode::End, 2), (KeyCode::Up, 1), (KeyCode::PageUp, 0), (KeyCode::PageDown, 2)]
    {
        press(&mut view, code);
        assert_eq!(view.cursor(), row, "{code:?}");
    }
    // The task has ended.
    view.look(look(4, 1_300, vec![task(1, "main", 5, 0, 0)]));
    assert_eq!(view.cursor(), 0);
    view.look(look(5, 1_300, Vec::new()));
    press(&mut view, KeyCode::Down);
    assert_eq!(press(&mut view, KeyCode::Enter), Action::Stay);
}

/// With a hundred rows and room for five, the row of the cursor is drawn.
#[test]
fn table_scrolls_with_the_cursor() {
    let mut view = view();
    let tasks = (1..=100).map(|id| task(id, &format!("t{id}"), 0, 0, 0)).collect();
    view.look(look(3, 0, tasks));
    press(&mut view, KeyCode::Char('i'));
    let names = |view: &View| {
        let screen = screen(view, 40, 10);
        let rows = screen.lines().skip(4).take(5);
        rows.map(|row| row.split_whitespace().nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&view), ["t1", "t2", "t3", "t4", "t5"]);
    press(&mut view, KeyCode::PageDown);
    assert_eq!(names(&view), ["t19", "t20", "t21", "t22", "t23"]);
    press(&mut view, KeyCode::End);
    assert_eq!(names(&view), ["t96", "t97", "t98", "t99", "t100"]);
}

#[test]
fn filter_is_typed_and_cleared() {
    let mut view = view();
    press(&mut view, KeyCode::Char('/'));
    for letter in "pars".chars() {
        assert_eq!(press(&mut view, KeyCode::Char(letter)), Action::Stay);
    }
    assert_eq!(order(&view), [2]);
    let last = |view: &View| screen(view, 60, 9).lines().last().unwrap().to_owned();
    assert_eq!(last(&view), "/pars▏  Enter keep  Esc clear");
    // Letters are no commands while the filter is typed.
    assert_eq!(press(&mut view, KeyCode::Char('q')), Action::Stay);
    assert_eq!(order(&view), [0_u64; 0]);
    press(&mut view, KeyCode::Backspace);
    press(&mut view, KeyCode::Enter);
    assert_eq!(last(&view), "/pars  Esc clear  Enter task  q end");
    press(&mut view, KeyCode::Esc);
    assert_eq!(order(&view), [2, 1, 3]);
    // A place passes as well.
    press(&mut view, KeyCode::Char('/'));
    for letter in "rs:3:9".chars() {
        press(&mut view, KeyCode::Char(letter));
    }
    assert_eq!(order(&view), [3]);
    press(&mut view, KeyCode::Esc);
    assert_eq!((order(&view), view.filter()), (vec![2, 1, 3], None));
}

#[test]
fn detail_shows_the_task_in_full() {
    let mut view = view();
    assert_eq!(press(&mut view, KeyCode::Enter), Action::Detail(Some(key(2))));
    let full = Answer { tasks: vec![task(2, "parser", 9, 500 * MS, 10 * MS)], ..Answer::default() };
    // It was asked for before.
    view.detail(key(1), None);
    view.detail(key(2), Some(full));
    let expected = "
task 2 `parser`
  state       waiting for 10 ms
  spawned at  src/main.rs:12:5
  future      app::run, 100 B
  steps       9, 500 ms in all, the longest 500 ms
  waits in park at src/main.rs:2:9
Esc back  ↑↓ scroll  q end
";
    assert_eq!(screen(&view, 80, 10), format!("{HEAD}{expected}"));
    press(&mut view, KeyCode::Down);
    assert_eq!(view.detail_lines().unwrap().next(), Some("  state       waiting for 10 ms"));
    view.detail(key(2), None);
    press(&mut view, KeyCode::Home);
    assert_eq!(view.detail_lines().unwrap().collect::<Vec<_>>(), ["task 2 has ended"]);
    assert_eq!(press(&mut view, KeyCode::Esc), Action::Detail(None));
    assert!(view.detail_lines().is_none());
}

#[test]
fn q_and_control_c_end() {
    let mut view = view();
    assert_eq!(press(&mut view, KeyCode::Char('q')), Action::End);
    press(&mut view, KeyCode::Char('/'));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(control_c), Action::End);
}
