//! Reads the files of a recording, which may be damaged, or not whole.
//!
//! A file is read as a whole, checked frame by frame, and then forgotten: what stays is where its
//! frames are. A question reads the file again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::files::END;
use super::format::{
    Body, EventsRow, Frame, HEAD, Header, MAGIC, Malformed, PREFIX, SnapshotRow, VERSION,
};
use crate::answer::Answer;
use crate::model::{Event, Kernel, State, Task, TaskKey, TaskName, Wait, What};
use crate::observed::nanoseconds;
use crate::text;

/// The trap after which a task is ready.
const YIELD: &str = "yield";

/// Why a recording cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system cannot read the file or folder.
    Io(PathBuf, io::Error),
    /// The file is no recording.
    Foreign(PathBuf),
    /// The file has a version of the format that this program does not know.
    Version(PathBuf, u32),
    /// The file is damaged, or its beginning is not whole.
    Damaged(PathBuf),
    /// The folder has no recording.
    Empty(PathBuf),
    /// The recording has no snapshot at or before the moment: the first one is at the second
    /// moment, if there is one.
    NoSnapshot(Duration, Option<Duration>),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{} cannot be read: {error}", path.display()),
            Self::Foreign(path) => write!(f, "{} is no recording of pikake", path.display()),
            Self::Version(path, version) => write!(
                f,
                "{} is a recording in version {version} of the format, and this program reads \
                 version {VERSION}: use the `pikake` of the program's version",
                path.display()
            ),
            Self::Damaged(path) => {
                write!(f, "{} is damaged, or its beginning is not whole", path.display())
            }
            Self::Empty(path) => write!(f, "{} has no recording", path.display()),
            Self::NoSnapshot(_, None) => f.write_str("the recording has no snapshot"),
            Self::NoSnapshot(at, Some(first)) => write!(
                f,
                "the recording has no snapshot in its first {}: the first one is {} after its begin",
                text::duration(nanoseconds(*at)),
                text::duration(nanoseconds(*first)),
            ),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A moment at which something unusual happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Trigger {
    /// The moment, since the recording began.
    pub at: Duration,
    /// The kind, as `long step`.
    pub kind: String,
    /// The event in words.
    pub about: String,
    /// The number of triggers before this one that are not in the recording.
    pub more: u64,
}

/// The contents of a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The file name of the program.
    pub program: String,
    /// The number of the process.
    pub pid: u32,
    /// The version of pikake in the program.
    pub pikake: String,
    /// The build id of the executable, in hexadecimal digits.
    pub build_id: Option<String>,
    /// The name of the machine.
    pub host: String,
    /// The number of files.
    pub files: usize,
    /// The moment of the first record that is left, since the recording began.
    pub first: Duration,
    /// The moment of the last record.
    pub last: Duration,
    /// The number of snapshots.
    pub snapshots: u64,
    /// The number of events.
    pub events: u64,
    /// The number of events that were not written.
    pub lost: u64,
    /// The triggers, the oldest first.
    pub triggers: Vec<Trigger>,
    /// Whether the recording was ended by its program. If not, the process was killed, or it runs.
    pub has_ended: bool,
    /// Notes: parts that could not be read, and the other recordings in the folder.
    pub notes: Vec<String>,
}

/// A process at a moment, by the last snapshot before and the events since then.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Moment {
    /// The moment, since the recording began.
    pub at: Duration,
    /// The moment of the snapshot.
    pub snapshot: Duration,
    /// The number of events since the snapshot.
    pub events: u64,
    /// The number of events since the snapshot that were not written: the tasks may have done more.
    pub lost: u64,
    /// The tasks, the graph of waits, and the figures. The figures are those of the snapshot. A
    /// wait that began after the snapshot has no words for what it is for.
    pub answer: Answer,
}

/// A recording of one process.
///
/// # Examples
///
/// See [`Settings`](super::Settings).
#[derive(Debug)]
pub struct Recording {
    files: Vec<Indexed>,
    summary: Summary,
}

/// A file that was read.
#[derive(Debug)]
struct Indexed {
    path: PathBuf,
    header: Header,
    snapshots: Vec<u64>,
    /// The bytes that are whole.
    length: usize,
}

impl Recording {
    /// Reads a file, or the files of the last recording in a folder.
    ///
    /// A record at the end that is not whole, as after `kill -9`, is left out, and so is all behind
    /// damage. [`Summary::notes`] says so.
    ///
    /// # Errors
    ///
    /// There is no such file; it is none of a recording, or of another version, or its beginning is
    /// damaged. The folder has no file that can be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let failed = |error| ReadError::Io(path.into(), error);
        let (paths, mut notes) = match fs::metadata(path).map_err(failed)?.is_dir() {
            true => last_in(path)?,
            false => (vec![path.to_owned()], Vec::new()),
        };
        let mut counted = Counted::default();
        let mut files = Vec::new();
        for path in &paths {
            files.push(counted.add(path, &mut notes)?);
        }
        let Some(Indexed { header, .. }) = files.first() else {
            return Err(ReadError::Empty(path.into()));
        };
        let Header { program, pid, pikake, build_id, host, at, .. } = header.clone();
        let Counted { last, snapshots, events, lost, triggers, has_ended } = counted;
        let summary = Summary {
            program,
            pid,
            pikake,
            build_id,
            host,
            files: files.len(),
            first: Duration::from_nanos(at),
            last: Duration::from_nanos(last.max(at)),
            snapshots,
            events,
            lost,
            triggers,
            has_ended,
            notes,
        };
        Ok(Self { files, summary })
    }

    /// The contents of the recording.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// A moment by the clock of the system.
    pub fn wall_time(&self, at: Duration) -> SystemTime {
        let of = |file: &&Indexed| Duration::from_nanos(file.header.at) <= at;
        let file = self.files.iter().rev().find(of).unwrap_or(&self.files[0]);
        UNIX_EPOCH + Duration::from_nanos(file.header.zero).saturating_add(at)
    }

    /// The moment of a time by the clock of the system, since the recording began.
    pub fn moment_of(&self, wall: SystemTime) -> Duration {
        let wall = nanoseconds(wall.duration_since(UNIX_EPOCH).unwrap_or_default());
        let of = |file: &&Indexed| file.header.zero.saturating_add(file.header.at) <= wall;
        let file = self.files.iter().rev().find(of).unwrap_or(&self.files[0]);
        Duration::from_nanos(wall.saturating_sub(file.header.zero))
    }

    /// The process at a moment since the recording began, as far as the recording knows.
    ///
    /// # Errors
    ///
    /// There is no snapshot at the moment or before. A file cannot be read any more.
    pub fn at(&self, at: Duration) -> Result<Moment, ReadError> {
        let nanos = nanoseconds(at);
        let first = self.files.iter().flat_map(|file| file.snapshots.first()).next();
        let earlier = |file: &Indexed| file.snapshots.iter().any(|snapshot| *snapshot <= nanos);
        let Some(begin) = self.files.iter().rposition(earlier) else {
            return Err(ReadError::NoSnapshot(at, first.copied().map(Duration::from_nanos)));
        };
        let mut replayed: Option<Replayed> = None;
        for file in &self.files[begin..] {
            let flow = file.each(|frame, texts| {
                match &frame.body {
                    Body::Snapshot(_) if frame.at > nanos => return Ok(ControlFlow::Break(())),
                    Body::Snapshot(row) => replayed = Some(Replayed::of(frame.at, row, texts)?),
                    Body::Events(row) => {
                        if let Some(replayed) = &mut replayed {
                            replayed.apply(row, texts, nanos)?;
                        }
                    }
                    Body::Trigger(_) | Body::Alive | Body::End => {}
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if flow.is_break() {
                break;
            }
        }
        let replayed = replayed.ok_or(ReadError::NoSnapshot(at, None))?;
        Ok(replayed.finish(nanos))
    }

    /// The events from one moment to another, with the kernels and the names of the tasks.
    ///
    /// # Errors
    ///
    /// A file cannot be read any more.
    pub fn events(&self, from: Duration, to: Duration) -> Result<Answer, ReadError> {
        let (from, to) = (nanoseconds(from), nanoseconds(to));
        let mut kernels = BTreeMap::<u32, Kernel>::new();
        let mut names = BTreeMap::<TaskKey, TaskName>::new();
        let mut lost = BTreeMap::<u32, u64>::new();
        let mut answer = Answer::default();
        for file in &self.files {
            let _ = file.each(|frame, texts| {
                match &frame.body {
                    Body::Snapshot(row) => {
                        let seen = row.to_answer(texts)?;
                        kernels.extend(seen.kernels.into_iter().map(|kernel| (kernel.id, kernel)));
                        for Task { id, name, spawned_at, .. } in seen.tasks {
                            names.insert(id, TaskName { id, name, spawned_at });
                        }
                    }
                    Body::Events(row) => {
                        let mut is_any = false;
                        for event in events_of(row, texts) {
                            let (event, place) = event?;
                            if !(from..=to).contains(&event.at) {
                                continue;
                            }
                            is_any = true;
                            let id = event.task;
                            if let Some(place) = place {
                                let (name, spawned_at) = (String::new(), place.to_owned());
                                let named = TaskName { id, name, spawned_at };
                                names.entry(id).or_insert(named);
                            }
                            answer.events.push(event);
                        }
                        if is_any && row.lost > 0 {
                            *lost.entry(row.kernel).or_default() += row.lost;
                        }
                    }
                    Body::Trigger(_) | Body::Alive | Body::End => {}
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        for event in &answer.events {
            let id = event.task.kernel;
            let unseen = Kernel { id, thread: String::new(), tid: None, stuck: None, stale: None };
            kernels.entry(id).or_insert(unseen);
        }
        let tasks: BTreeSet<TaskKey> = answer.events.iter().map(|event| event.task).collect();
        names.retain(|task, _| tasks.contains(task));
        answer.kernels = kernels.into_values().collect();
        answer.names = names.into_values().collect();
        answer.lost = lost.into_iter().collect();
        answer.events.sort_by_key(|event| event.at);
        Ok(answer)
    }
}

/// The files of the last recording in a folder, and notes about the others.
fn last_in(folder: &Path) -> Result<(Vec<PathBuf>, Vec<String>), ReadError> {
    let failed = |error| ReadError::Io(folder.into(), error);
    let mut runs = BTreeMap::<_, Vec<(u32, PathBuf)>>::new();
    let mut notes = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|end| end != END) {
            continue;
        }
        match Content::read(&path) {
            Ok(Content { header, .. }) => {
                let run = (header.run, header.pid, header.program);
                runs.entry(run).or_default().push((header.number, path));
            }
            Err(error) => notes.push(error.to_string()),
        }
    }
    let Some((_, mut files)) = runs.pop_last() else {
        return Err(ReadError::Empty(folder.into()));
    };
    files.sort();
    for ((_, pid, program), files) in runs {
        let (number, first) = (files.len(), files[0].1.display());
        notes.push(format!(
            "the folder also has {number} files of {program}, process {pid}, as {first}"
        ));
    }
    Ok((files.into_iter().map(|(_, path)| path).collect(), notes))
}

/// The content of a file.
struct Content {
    header: Header,
    bytes: Vec<u8>,
    /// The beginning of the second frame.
    begin: usize,
}

impl Content {
    fn read(path: &Path) -> Result<Self, ReadError> {
        let failed = |error| ReadError::Io(path.into(), error);
        let mut file = File::open(path).map_err(failed)?;
        let mut prefix = Vec::new();
        // A file of others may be long.
        file.by_ref().take(PREFIX as u64).read_to_end(&mut prefix).map_err(failed)?;
        if !prefix.starts_with(&MAGIC) {
            return Err(ReadError::Foreign(path.into()));
        }
        let version = prefix[MAGIC.len()..].try_into().map(u32::from_le_bytes);
        match version {
            Ok(VERSION) => {}
            Ok(other) => return Err(ReadError::Version(path.into(), other)),
            Err(_) => return Err(ReadError::Damaged(path.into())),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let damaged = || ReadError::Damaged(path.into());
        let (content, begin) = content_at(&bytes, 0).ok().ok_or_else(damaged)?;
        let header = serde_json::from_slice(content).map_err(|_| damaged())?;
        Ok(Self { header, bytes, begin })
    }

    /// The frames, up to an offset.
    fn frames(&self, until: usize) -> Frames<'_> {
        let bytes = &self.bytes[..until.min(self.bytes.len())];
        Frames { bytes, at: self.begin, texts: Vec::new() }
    }
}

/// Why there is no frame.
enum NoFrame {
    /// It is the end of the file.
    End,
    /// The frame is not whole.
    Torn,
    Damaged,
}

/// The content of the frame at an offset, and the offset of the next frame.
fn content_at(bytes: &[u8], at: usize) -> Result<(&[u8], usize), NoFrame> {
    let rest = bytes.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return Err(NoFrame::End);
    }
    let Some((head, rest)) = rest.split_first_chunk::<HEAD>() else { return Err(NoFrame::Torn) };
    let [a, b, c, d, sum @ ..] = *head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let content = rest.get(..length).ok_or(NoFrame::Torn)?;
    match crc32fast::hash(content) == u32::from_le_bytes(sum) {
        true => Ok((content, at + HEAD + length)),
        false => Err(NoFrame::Damaged),
    }
}

/// Decodes frame after frame, and collects the texts.
struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    texts: Vec<String>,
}

impl Frames<'_> {
    fn next(&mut self) -> Result<Frame, NoFrame> {
        let (content, next) = content_at(self.bytes, self.at)?;
        let mut frame: Frame = postcard::from_bytes(content).map_err(|_| NoFrame::Damaged)?;
        self.texts.append(&mut frame.texts);
        self.at = next;
        Ok(frame)
    }
}

impl Indexed {
    /// Calls a closure with each frame and the texts so far, until the closure breaks off.
    fn each(
        &self,
        mut work: impl FnMut(&Frame, &[String]) -> Result<ControlFlow<()>, Malformed>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let content = Content::read(&self.path)?;
        let mut frames = content.frames(self.length);
        while let Ok(frame) = frames.next() {
            let flow = work(&frame, &frames.texts);
            let flow = flow.map_err(|Malformed| ReadError::Damaged(self.path.clone()))?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The sums of all files.
#[derive(Default)]
struct Counted {
    last: u64,
    snapshots: u64,
    events: u64,
    lost: u64,
    triggers: Vec<Trigger>,
    has_ended: bool,
}

impl Counted {
    /// Reads a file once.
    fn add(&mut self, path: &Path, notes: &mut Vec<String>) -> Result<Indexed, ReadError> {
        let content = Content::read(path)?;
        let mut frames = content.frames(usize::MAX);
        let mut snapshots = Vec::new();
        let no_frame = loop {
            let Frame { at, body, .. } = match frames.next() {
                Ok(frame) => frame,
                Err(no_frame) => break no_frame,
            };
            self.last = self.last.max(at);
            self.has_ended = false;
            match body {
                Body::Snapshot(_) => snapshots.push(at),
                Body::Events(row) => {
                    self.events += row.rows.len() as u64;
                    self.lost = self.lost.saturating_add(row.lost);
                }
                Body::Trigger(row) => self.triggers.push(Trigger {
                    at: Duration::from_nanos(at),
                    kind: row.kind,
                    about: row.about,
                    more: row.more,
                }),
                Body::Alive => {}
                Body::End => self.has_ended = true,
            }
        };
        let (length, path) = (frames.at, path.to_owned());
        let rest = content.bytes.len() - length;
        match no_frame {
            NoFrame::End => {}
            NoFrame::Torn => notes.push(format!(
                "the last record of {} is not whole: its {rest} bytes are left out",
                path.display()
            )),
            NoFrame::Damaged => notes
                .push(format!("{} is damaged: its last {rest} bytes are left out", path.display())),
        }
        self.snapshots += snapshots.len() as u64;
        Ok(Indexed { path, header: content.header, snapshots, length })
    }
}

/// The events of a record, each with the place of the task's spawn if the event has it.
fn events_of<'a>(
    row: &'a EventsRow,
    texts: &'a [String],
) -> impl Iterator<Item = Result<(Event, Option<&'a str>), Malformed>> {
    let mut at = 0_u64;
    row.rows.iter().map(move |event| {
        at = at.wrapping_add_signed(event.after);
        let (what, place) = event.what.to_model(texts)?;
        let task = TaskKey { kernel: row.kernel, task: event.task };
        Ok((Event { at, task, what }, place))
    })
}

/// The tasks of a snapshot, and what events have changed since.
struct Replayed {
    /// The moment of the snapshot.
    at: u64,
    answer: Answer,
    places: HashMap<TaskKey, usize>,
    /// The tasks that were stepped since, with the moment of the last step.
    stepped: HashMap<TaskKey, u64>,
    ended: HashSet<TaskKey>,
    events: u64,
    lost: u64,
}

impl Replayed {
    fn of(at: u64, row: &SnapshotRow, texts: &[String]) -> Result<Self, Malformed> {
        let answer = row.to_answer(texts)?;
        let tasks = answer.tasks.iter().enumerate();
        let places = tasks.map(|(place, task)| (task.id, place)).collect();
        let (stepped, ended) = (HashMap::new(), HashSet::new());
        Ok(Self { at, answer, places, stepped, ended, events: 0, lost: 0 })
    }

    /// Applies the events of a record up to a moment.
    fn apply(&mut self, row: &EventsRow, texts: &[String], until: u64) -> Result<(), Malformed> {
        let mut is_any = false;
        for event in events_of(row, texts) {
            let (Event { at, task, what }, spawned_at) = event?;
            // The look has seen what was before.
            if at < self.at || at > until {
                continue;
            }
            is_any = true;
            self.events += 1;
            if let What::Ended { .. } = what {
                self.ended.insert(task);
                continue;
            }
            let place = *self.places.entry(task).or_insert_with(|| {
                self.answer.tasks.push(unknown(task));
                self.answer.tasks.len() - 1
            });
            let known = &mut self.answer.tasks[place];
            match what {
                What::Spawned => {
                    // The look may have found the task already.
                    if known.spawned_at.is_empty() {
                        known.spawned_at = spawned_at.unwrap_or_default().to_owned();
                        self.stepped.insert(task, at);
                    }
                }
                What::Stepped { took, trap, place } => {
                    known.state = match trap.as_deref() {
                        Some(YIELD) => State::Ready,
                        _ => State::Waiting,
                    };
                    known.steps += 1;
                    known.busy += took.unwrap_or(0);
                    known.longest = known.longest.max(took.unwrap_or(0));
                    let wait = |trap| Wait {
                        trap,
                        place: place.unwrap_or_default(),
                        about: None,
                        owners: Vec::new(),
                        scopes: Vec::new(),
                    };
                    known.waits = trap.map(wait).into_iter().collect();
                    self.stepped.insert(task, at);
                }
                What::Ended { .. } => {}
            }
        }
        if is_any {
            self.lost = self.lost.saturating_add(row.lost);
        }
        Ok(())
    }

    /// The process at a moment.
    fn finish(self, at: u64) -> Moment {
        let Self { at: snapshot, mut answer, stepped, ended, events, lost, .. } = self;
        let age = at.saturating_sub(snapshot);
        answer.tasks.retain(|task| !ended.contains(&task.id));
        let is_stale = |kernel: &&Kernel| kernel.stale.is_some();
        let stale: BTreeSet<u32> = answer.kernels.iter().filter(is_stale).map(|it| it.id).collect();
        for task in &mut answer.tasks {
            // The tasks of a kernel that does not answer are as they were, here as in live lists.
            if stale.contains(&task.id.kernel) && !stepped.contains_key(&task.id) {
                continue;
            }
            if let Some(goes_on) = &mut task.goes_on {
                goes_on.asked = goes_on.asked.saturating_add(age);
            }
            if let Some(stepped) = stepped.get(&task.id) {
                task.since = Some(at.saturating_sub(*stepped));
                continue;
            }
            task.since = task.since.map(|since| since.saturating_add(age));
            let later = i64::try_from(age).unwrap_or(i64::MAX);
            for scope in task.waits.iter_mut().flat_map(|wait| &mut wait.scopes) {
                scope.left = scope.left.map(|left| left.saturating_sub(later));
            }
        }
        for kernel in &mut answer.kernels {
            kernel.stale = kernel.stale.map(|stale| stale.saturating_add(age));
            if let Some(step) = &mut kernel.stuck {
                step.lasts = step.lasts.saturating_add(age);
            }
        }
        let is_same = |task: &TaskKey| !stepped.contains_key(task) && !ended.contains(task);
        if let Some(graph) = &mut answer.graph {
            graph.edges.retain(|edge| is_same(&edge.from) && !ended.contains(&edge.to));
            graph.deadlocks.retain(|circle| circle.iter().all(is_same));
            graph.left_out.retain(|(task, _)| is_same(task));
            graph.unpolled.retain(is_same);
        }
        let (at, snapshot) = (Duration::from_nanos(at), Duration::from_nanos(snapshot));
        Moment { at, snapshot, events, lost, answer }
    }
}

/// A task that the snapshot does not have.
fn unknown(id: TaskKey) -> Task {
    Task {
        id,
        name: String::new(),
        parent: None,
        state: State::New,
        since: None,
        steps: 0,
        busy: 0,
        longest: 0,
        spawned_at: String::new(),
        future: String::new(),
        bytes: 0,
        cancelled: None,
        goes_on: None,
        waits: Vec::new(),
    }
}
