//! `top`: the tasks of a process on the terminal, each second anew.
//!
//! A thread of its own asks the process, so that keys work while the process does not answer. It
//! times steps as long as it is connected. [`View`] has all that is shown; this file has the
//! terminal.

mod draw;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pikake::console::answer::Answer;
use pikake::console::client::{Client, ClientError};
use pikake::console::model::TaskKey;
use pikake::console::protocol::Request;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::view::{Action, Look, View};
use crate::stop::Stop;

/// How often the process is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// How often news and signals are looked for.
const MOMENT: Duration = Duration::from_millis(100);

/// What the thread that asks has to tell.
enum News {
    Look(Look),
    /// The task that was asked for; `None` if it has ended.
    Detail(TaskKey, Option<Answer>),
    Failed(ClientError),
}

/// Shows the tasks until a key ends it. The second connection is for the figures of locks.
pub(super) fn run(client: Client, for_locks: Option<Client>) -> Result<(), Stop> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Stop::usage("`top` needs a terminal; `ps` prints the tasks once"));
    }
    let mut view = View::new(client.process().clone());
    let (news_sender, news) = channel();
    let (details, wanted) = channel();
    // It ends when the process answers after the channel has closed.
    thread::spawn(move || {
        if let Err(error) = ask(client, for_locks, &wanted, &news_sender) {
            let _ = news_sender.send(News::Failed(error));
        }
    });
    let signals = Signals::new().map_err(|error| Stop::other(format!("no signals: {error}")))?;
    let mut screen = Screen::new().map_err(|error| Stop::other(format!("no terminal: {error}")))?;
    show(&mut view, &mut screen.terminal, &news, &details, &signals)
}

/// Asks the process each second, and for the detail of a task as soon as it is wanted.
fn ask(
    mut client: Client,
    mut for_locks: Option<Client>,
    wanted: &Receiver<Option<TaskKey>>,
    news: &Sender<News>,
) -> Result<(), ClientError> {
    client.ask(&Request::Time)?;
    let start = Instant::now();
    let mut detail = None;
    loop {
        let next = Instant::now() + PERIOD;
        let at = start.elapsed();
        let mut tasks = answer(&mut client, &Request::Tasks { waits: false })?;
        // A process of a version before refuses this, and closes the connection.
        let locks = for_locks.as_mut().and_then(|client| answer(client, &Request::Locks).ok());
        match locks {
            Some(answer) => tasks.locks = answer.locks,
            None => for_locks = None,
        }
        let stats = answer(&mut client, &Request::Stats)?;
        if news.send(News::Look(Look { at, tasks, stats: stats.stats })).is_err() {
            return Ok(());
        }
        loop {
            if let Some(task) = detail {
                let task_now = match answer(&mut client, &Request::Task { task }) {
                    Ok(answer) => Some(answer).filter(|answer| !answer.tasks.is_empty()),
                    Err(ClientError::Failed(_)) => None,
                    Err(error) => return Err(error),
                };
                if news.send(News::Detail(task, task_now)).is_err() {
                    return Ok(());
                }
            }
            match wanted.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(task) => detail = task,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

fn answer(client: &mut Client, request: &Request) -> Result<Answer, ClientError> {
    Answer::of(client.ask(request)?).map_err(ClientError::Failed)
}

fn show(
    view: &mut View,
    terminal: &mut DefaultTerminal,
    news: &Receiver<News>,
    details: &Sender<Option<TaskKey>>,
    signals: &Signals,
) -> Result<(), Stop> {
    let failed = |error: io::Error| Stop::other(format!("the terminal: {error}"));
    loop {
        terminal.draw(|frame| draw::draw(frame, view)).map_err(failed)?;
        if let Some(signal) = signals.taken() {
            return Err(Stop::signal(signal, None));
        }
        if event::poll(MOMENT).map_err(failed)?
            && let Event::Key(key) = event::read().map_err(failed)?
        {
            match view.key(key) {
                Action::Stay => {}
                Action::End => return Ok(()),
                // The thread has ended if the channel is closed, and has said why.
                Action::Detail(task) => drop(details.send(task)),
            }
        }
        loop {
            match news.try_recv() {
                Ok(News::Look(look)) => view.look(look),
                Ok(News::Detail(task, answer)) => view.detail(task, answer),
                Ok(News::Failed(error)) => return Err(Stop::console(error)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Stop::other("the thread that asks the process has ended"));
                }
            }
        }
    }
}

/// The terminal, which the drop restores. A panic restores it before its message.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn new() -> io::Result<Self> {
        // What the failed attempt has set is taken back, too.
        let restored = |_: &io::Error| drop(ratatui::try_restore());
        Ok(Self { terminal: ratatui::try_init().inspect_err(restored)? })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Holds signals back that would end the program with the terminal as it is. After the drop they
/// end it again.
struct Signals {
    taken: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let signals = Self { taken: Arc::default(), is_over: Arc::default() };
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let is_over = Arc::clone(&signals.is_over);
            signal_hook::flag::register_conditional_default(signal, is_over)?;
            let taken = Arc::clone(&signals.taken);
            signal_hook::flag::register_usize(signal, taken, signal as usize)?;
        }
        Ok(signals)
    }

    fn taken(&self) -> Option<i32> {
        match self.taken.load(Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
