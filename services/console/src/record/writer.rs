//! Writes the files of a recording.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Settings;
use super::build_id::build_id;
use super::files::{Files, named};
use super::format::{Body, Frame, HEAD, Header, MAGIC, Texts, VERSION};
use crate::observed::nanoseconds;

/// The number of files among which the bound is divided.
const FILES: u64 = 8;

/// The pause after a record that could not be written.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The part of a file's greatest length that is left for a trigger, when the next file begins.
const ROOM: u64 = 8;

/// The outcome of the writing of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// The record has this number of bytes.
    Yes(u64),
    /// The record is lost: it is longer than a file, or the system refuses to write.
    No,
}

/// Writes records into the files of one process.
pub(crate) struct Writer {
    files: Files,
    settings: Settings,
    /// The header of each file.
    header: Header,
    began: Instant,
    current: Option<Current>,
    texts: Texts,
    /// The moment of the next attempt, while the system refuses to write.
    paused_until: Option<Instant>,
    last_write: Option<Instant>,
}

/// The file that is being written.
struct Current {
    file: File,
    path: PathBuf,
    length: u64,
    made: Instant,
    /// No snapshot is in it yet.
    is_new: bool,
}

impl Writer {
    /// Makes the folder, and removes the oldest files. The first file begins with the first record.
    pub(crate) fn new(settings: Settings) -> io::Result<Self> {
        let program = program();
        let files = Files::new(&settings.folder, &program)?;
        let pid = process::id();
        let header = Header {
            program,
            pid,
            pikake: env!("CARGO_PKG_VERSION").to_owned(),
            build_id: build_id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            run: wall(),
            number: files.last_number(pid),
            at: 0,
            zero: 0,
        };
        let mut writer = Self {
            files,
            settings,
            header,
            began: Instant::now(),
            current: None,
            texts: Texts::default(),
            paused_until: None,
            last_write: None,
        };
        writer.begin_file()?;
        Ok(writer)
    }

    /// The moment at which the recording began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// The moment of the last record.
    pub(crate) fn last_write(&self) -> Option<Instant> {
        self.last_write
    }

    /// The time from which on requests and jobs are slow.
    pub(crate) fn slow(&self) -> Duration {
        self.settings.slow
    }

    /// The bytes that all files together take at most.
    pub(crate) fn bound(&self) -> u64 {
        self.settings.bytes
    }

    /// The greatest length of a file.
    fn limit(&self) -> u64 {
        // The length of a record has four bytes.
        (self.settings.bytes / FILES).min(u32::MAX.into())
    }

    /// Whether the system has refused to write, and the next attempt is not due.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the next record is to be a snapshot: the file has none, or another one begins.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.current.as_ref().is_none_or(|current| current.is_new) || self.is_file_full()
    }

    fn is_file_full(&self) -> bool {
        let (limit, age) = (self.limit(), self.settings.age / FILES as u32);
        let is_full = |current: &Current| {
            current.length > limit - limit / ROOM || current.made.elapsed() > age
        };
        self.current.as_ref().is_some_and(is_full)
    }

    /// Writes a record. `body` is called once for each file that it may go to. `at` is a moment of
    /// the recording.
    pub(crate) fn write(&mut self, at: u64, body: impl Fn(&mut Texts) -> Body) -> Written {
        if self.is_paused() {
            return Written::No;
        }
        match self.try_write(at, body) {
            Ok(written) => {
                if self.paused_until.take().is_some() {
                    tracing::info!("the recording goes on");
                }
                self.last_write = Some(Instant::now());
                written
            }
            Err(error) => {
                self.give_up_file();
                let is_first = self.paused_until.is_none();
                self.paused_until = Some(Instant::now() + TRY_AGAIN);
                if is_first {
                    tracing::warn!(
                        %error,
                        "the recording pauses, and tries again every {} s",
                        TRY_AGAIN.as_secs()
                    );
                }
                Written::No
            }
        }
    }

    fn try_write(&mut self, at: u64, body: impl Fn(&mut Texts) -> Body) -> io::Result<Written> {
        loop {
            let known = self.texts.len();
            let body = body(&mut self.texts);
            let is_snapshot = matches!(body, Body::Snapshot(_));
            if self.current.is_none() || (is_snapshot && self.is_file_full()) {
                self.begin_file()?;
                continue;
            }
            let frame = Frame { at, texts: self.texts.take_new(), body };
            let content = postcard::to_allocvec(&frame).map_err(io::Error::other)?;
            let limit = self.limit();
            let Some(current) = &mut self.current else { continue };
            let bytes = framed(&content);
            if current.length + bytes.len() as u64 <= limit {
                current.write(&bytes)?;
                current.is_new &= !is_snapshot;
                return Ok(Written::Yes(bytes.len() as u64));
            }
            if current.is_new && known == 0 {
                self.texts.truncate(known);
                tracing::debug!(bytes = bytes.len(), "a record is longer than a file");
                return Ok(Written::No);
            }
            self.begin_file()?;
        }
    }

    /// Begins the next file.
    fn begin_file(&mut self) -> io::Result<()> {
        self.current = None;
        self.texts = Texts::default();
        self.files.remove_old(self.settings.bytes - self.limit(), self.settings.age);
        let at = nanoseconds(self.began.elapsed());
        let number = self.header.number.saturating_add(1);
        let zero = wall().saturating_sub(at);
        let header = Header { number, at, zero, ..self.header.clone() };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(framed(&serde_json::to_vec(&header)?));
        let (file, path) = self.files.make(self.header.pid, number)?;
        self.header.number = number;
        let mut current = Current { file, path, length: 0, made: Instant::now(), is_new: true };
        if let Err(error) = current.write(&bytes) {
            // An empty file is of no use. If the removal fails, a later one removes the file.
            let _ = std::fs::remove_file(&current.path);
            self.header.number -= 1;
            return Err(error);
        }
        self.current = Some(current);
        Ok(())
    }

    /// Leaves a file whose last record may not be whole.
    fn give_up_file(&mut self) {
        if let Some(current) = self.current.take() {
            // If it fails, the reader leaves the record out.
            let _ = current.file.set_len(current.length);
        }
    }
}

impl Current {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| named(error, "write", &self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// The nanoseconds since 1970.
fn wall() -> u64 {
    nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A content with the bytes before it.
pub(super) fn framed(content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + content.len());
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(content).to_le_bytes());
    bytes.extend(content);
    bytes
}

/// The file name of this program.
pub(crate) fn program() -> String {
    let path = env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_else(|| Path::new("program").as_os_str());
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::record::tests::answer;
    use crate::record::{Recording, SnapshotRow};

    fn snapshot(writer: &mut Writer, name: &str, tasks: u64) -> Written {
        let answer = answer(name, tasks);
        let at = nanoseconds(writer.began().elapsed());
        writer.write(at, |texts| Body::Snapshot(Box::new(SnapshotRow::of(&answer, 0, texts))))
    }

    fn lengths(folder: &Path) -> Vec<u64> {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        files.map(|file| file.len()).collect()
    }

    #[test]
    fn files_stay_within_the_bound_and_stand_alone() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::new(folder.path()).mib(1);
        let (bound, limit) = (settings.bytes, settings.bytes / FILES);
        let mut writer = Writer::new(settings).unwrap();
        for number in 0..200 {
            let written = snapshot(&mut writer, &format!("round {number}"), 500);
            assert_ne!(written, Written::No);
            let lengths = lengths(folder.path());
            assert!(lengths.iter().sum::<u64>() <= bound, "{lengths:?}");
            assert!(lengths.iter().all(|length| *length <= limit), "{lengths:?}");
        }
        let mut names: Vec<PathBuf> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert!((FILES - 1..=FILES).contains(&(names.len() as u64)), "{names:?}");
        assert!(writer.header.number > FILES as u32, "the first files were removed");
        for name in names {
            let mode = fs::metadata(&name).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let recording = Recording::open(&name).unwrap();
            let last = recording.at(recording.summary().last).unwrap();
            assert_eq!(last.answer.tasks.len(), 500);
        }
        let all = Recording::open(folder.path()).unwrap();
        let last = all.at(all.summary().last).unwrap();
        assert_eq!(last.answer.tasks[0].name, "round 199");
    }

    #[test]
    fn record_longer_than_a_file_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(Settings::new(folder.path()).mib(1)).unwrap();
        assert_eq!(snapshot(&mut writer, "many", 100_000), Written::No);
        assert!(!writer.is_paused());
        assert_ne!(snapshot(&mut writer, "few", 3), Written::No);
        let recording = Recording::open(folder.path()).unwrap();
        assert_eq!(recording.summary().snapshots, 1);
        let last = recording.at(recording.summary().last).unwrap();
        assert_eq!(last.answer, answer("few", 3));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn recording_pauses_on_a_full_disk_and_goes_on() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

        let folder = tempfile::tempdir().unwrap();
        let options = Some(c"size=128k");
        if mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), options).is_err() {
            return eprintln!("skipped: no file system can be mounted");
        }
        let recorded = folder.path().join("recorded");
        let mut writer = Writer::new(Settings::new(&recorded)).unwrap();
        assert_ne!(snapshot(&mut writer, "before", 3), Written::No);
        let filler = folder.path().join("filler");
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[0; 1024]).is_ok() {}
        drop(file);
        assert_eq!(snapshot(&mut writer, "never", 1_000), Written::No);
        assert!(writer.is_paused());
        // As after the pause.
        writer.paused_until = Some(Instant::now());
        assert_eq!(snapshot(&mut writer, "still full", 1_000), Written::No);
        fs::remove_file(&filler).unwrap();
        writer.paused_until = Some(Instant::now());
        assert!(writer.wants_snapshot());
        assert_ne!(snapshot(&mut writer, "after", 3), Written::No);
        assert!(!writer.is_paused());
        let recording = Recording::open(&recorded).unwrap();
        let last = recording.summary().last;
        assert_eq!(recording.summary().snapshots, 2);
        assert_eq!(recording.summary().notes, Vec::<String>::new());
        assert_eq!(recording.at(last).unwrap().answer.tasks[0].name, "after");
        drop(writer);
        unmount(folder.path(), UnmountFlags::DETACH).unwrap();
    }
}
