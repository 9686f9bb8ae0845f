//! What the thread of a database does on its own, and when: looks for messages and outcomes of other
//! processes, for owners that are gone, for what is too old.
//!
//! All its times are on this page.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::Result;

use crate::brokers::sqlite::database::Database;
use crate::brokers::sqlite::row::{micros_of, wall_now};
use crate::brokers::sqlite::schema::{failed, write_nothing};
use crate::brokers::sqlite::statements::{self as sql, OUTCOME_LIFE};

/// How long after something has happened others are looked at again; then more and more rarely,
const LOOK_FIRST: Duration = Duration::from_millis(2);

/// but at least so often. Half of it is what another process' message waits on average.
const LOOK_LAST: Duration = Duration::from_millis(20);

/// How often others are asked whether they still live.
const OWNERS_EVERY: Duration = Duration::from_millis(500);

/// An owner whose file is locked, and that has shown no life in so many looks, hangs: ten seconds. Looks are counted
/// and not time, so that who was stopped itself, with all the others, draws no conclusion from that.
const LOOKS: u32 = 20;

/// After so many looks one that looks writes something itself: if that fails, nobody can show that it lives, and its looks
/// begin anew. A living one has tried to beat by then, so it has long done so in the looks that are left.
const DOUBTS: u32 = 10;

/// How often what is too old is removed.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// After an error that concerns all, so long until it is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The longest sleep, when there is nothing to do at all.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

pub(crate) struct Maintenance {
    /// What `data_version` was when the database was looked at.
    version: i64,
    look_every: Duration,
    looked: Instant,
    owners_looked: Option<Instant>,
    forgotten: Option<Instant>,
    failed: Option<Instant>,
    /// The other owners' beats, and for how many looks they have been the same.
    seen: BTreeMap<i64, (i64, u32)>,
    /// Owners that are gone, and have to be released; those that hang with the beats that were seen.
    gone: Vec<(i64, Option<i64>)>,
    /// Somebody may hang, and it has to be seen whether the database can be written at all.
    is_in_doubt: bool,
}

impl Default for Maintenance {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            version: 0,
            look_every: LOOK_FIRST,
            looked: now,
            owners_looked: None,
            forgotten: None,
            failed: None,
            seen: BTreeMap::new(),
            gone: Vec::new(),
            is_in_doubt: false,
        }
    }
}

impl Maintenance {
    /// How long the thread may sleep if nothing is asked of it.
    pub(crate) fn pause(&self, database: &Database) -> Duration {
        if self.is_work_left(database) {
            let since = self.failed.map(|failed| failed.elapsed());
            return since.map_or(Duration::ZERO, |since| TRY_AGAIN_AFTER.saturating_sub(since));
        }
        let mut pause = LONGEST_PAUSE;
        if looks_at_others(database) {
            pause = pause.min(self.look_every.saturating_sub(self.looked.elapsed()));
        }
        if let Some(due) = database.next_due() {
            let length = u64::try_from(due - wall_now()).unwrap_or(0);
            pause = pause.min(Duration::from_micros(length));
        }
        if !database.consumers.is_empty() {
            let since = self.owners_looked.map_or(OWNERS_EVERY, |looked| looked.elapsed());
            pause = pause.min(OWNERS_EVERY.saturating_sub(since));
        }
        pause
    }

    /// Whether a transaction of its own is needed.
    fn is_work_left(&self, database: &Database) -> bool {
        let has_to_beat = || !database.held.is_empty() && database.owner.next_beat().is_zero();
        !self.gone.is_empty() || self.is_in_doubt || database.could_give() || has_to_beat()
    }

    /// Whether it is not too soon after a failure.
    pub(crate) fn may_try(&self) -> bool {
        self.failed.is_none_or(|failed| failed.elapsed() >= TRY_AGAIN_AFTER)
    }

    /// Reads what has changed; tells whether there is something to be written.
    pub(crate) fn look_around(&mut self, database: &mut Database) -> Result<bool> {
        let now = wall_now();
        for (queue, due) in &database.due {
            if *due <= now {
                database.full.insert(*queue);
            }
        }
        if looks_at_others(database) && self.looked.elapsed() >= self.look_every {
            self.look_at_others(database, now)?;
        }
        let is_due = self.owners_looked.is_none_or(|looked| looked.elapsed() >= OWNERS_EVERY);
        if !database.consumers.is_empty() && is_due {
            self.owners_looked = Some(Instant::now());
            self.look_at_owners(database)?;
        }
        Ok(self.is_work_left(database))
    }

    fn look_at_owners(&mut self, database: &Database) -> Result<()> {
        let before = std::mem::take(&mut self.seen);
        self.gone.clear();
        for (owner, lock, beats) in sql::others(&database.db, database.owner.id())? {
            let looks = match before.get(&owner) {
                Some((same, looks)) if *same == beats => looks + 1,
                _ => 0,
            };
            self.seen.insert(owner, (beats, looks));
            self.is_in_doubt |= looks == DOUBTS;
            if database.owner.finds_gone(&lock) {
                self.gone.push((owner, None));
            } else if looks >= LOOKS {
                self.gone.push((owner, Some(beats)));
            }
        }
        Ok(())
    }

    fn look_at_others(&mut self, database: &mut Database, now: i64) -> Result<()> {
        self.looked = Instant::now();
        database.check_file()?;
        let version = sql::data_version(&database.db)?;
        let has_changed = self.version != version;
        self.look_every = match has_changed {
            true => LOOK_FIRST,
            false => (self.look_every * 2).min(LOOK_LAST),
        };
        if has_changed {
            database.look_for_messages(now)?;
        }
        match database.outcomes.watches.are_awaited() {
            true if has_changed => database.outcomes.look(&database.db)?,
            true => {}
            false => database.outcomes.rest(),
        }
        // Only now: what could not be read is looked at again.
        self.version = version;
        Ok(())
    }

    /// What is done in each transaction, after what was asked.
    pub(crate) fn work(&mut self, database: &mut Database) -> Result<()> {
        let now = wall_now();
        if self.is_in_doubt {
            write_nothing(&database.db)?;
        }
        for (owner, beats) in &self.gone {
            // It may have beaten since it was looked at.
            database.release(*owner, *beats)?;
        }
        if self.forgotten.is_none_or(|forgotten| forgotten.elapsed() >= FORGET_EVERY) {
            sql::forget_before(&database.db, now - micros_of(OUTCOME_LIFE))?;
            self.forgotten = Some(Instant::now());
        }
        if !database.held.is_empty() {
            database.owner.live(&database.db)?;
        }
        database.fill(now)?;
        self.gone.clear();
        (self.is_in_doubt, self.failed) = (false, None);
        Ok(())
    }

    /// The database could not be read or written.
    pub(crate) fn fail(&mut self, database: &Database, error: &rusqlite::Error) {
        self.failed = Some(Instant::now());
        // Others may be unable to beat for the same reason. Who is gone is found again.
        self.seen.clear();
        self.gone.clear();
        self.is_in_doubt = false;
        database.fail(|| failed(&database.path, error));
    }
}

/// Whether somebody here waits for what other processes do.
fn looks_at_others(database: &Database) -> bool {
    database.has_room() || database.outcomes.watches.are_awaited()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::brokers::sqlite::row::Row;
    use crate::message::Message;

    /// Two of one database.
    fn desks() -> (tempfile::TempDir, Database, Database) {
        let directory = tempfile::TempDir::new().unwrap();
        let [one, other] = [1, 2].map(|number| {
            Database::open(directory.path().join("jobs.db"), number, Default::default())
                .ok()
                .unwrap()
        });
        (directory, one, other)
    }

    #[test]
    fn who_shows_no_life_in_so_many_looks_is_gone() {
        let (_directory, mut other, here) = desks();
        other.owner.hold().unwrap();
        let owner = other.owner.ensure(&other.db).unwrap();
        let mut maintenance = Maintenance::default();
        let mut looks = |times| {
            for _ in 0..times {
                maintenance.look_at_owners(&here).unwrap();
            }
            maintenance.gone.iter().map(|(owner, _)| *owner).collect::<Vec<_>>()
        };
        assert!(looks(LOOKS).is_empty());
        sql::beat(&other.db, owner).unwrap();
        assert!(looks(LOOKS).is_empty(), "it has shown that it lives");
        assert_eq!(looks(1), [owner]);
        sql::beat(&other.db, owner).unwrap();
        assert!(looks(1).is_empty(), "it goes on");
        drop(other);
        assert_eq!(looks(1), [owner], "its lock is gone");
    }

    #[test]
    fn who_beats_after_the_last_look_keeps_what_it_has() {
        let (_directory, mut other, mut here) = desks();
        other.owner.hold().unwrap();
        let owner = other.owner.ensure(&other.db).unwrap();
        sql::make_queue(&other.db, "work", 0).unwrap();
        let (queue, _) = sql::queue(&other.db, "work").unwrap().unwrap();
        let row = Row::of(&Message::default());
        sql::publish(&other.db, (queue, 0), &row, None).unwrap();
        let mut maintenance = Maintenance::default();
        for _ in 0..=LOOKS {
            maintenance.look_at_owners(&here).unwrap();
        }
        // It had nothing, and so nothing to beat for; now it has.
        assert!(sql::beat(&other.db, owner).unwrap());
        let taken = sql::take(&other.db, queue, owner, 1).unwrap();
        maintenance.work(&mut here).unwrap();
        assert!(sql::is_owner(&here.db, owner).unwrap());
        assert!(sql::remove(&other.db, taken[0].id, owner).unwrap(), "it is still its own");
    }

    /// While nobody can write, nobody can show that it lives.
    #[test]
    fn who_cannot_write_itself_judges_nobody() {
        let (_directory, mut other, mut here) = desks();
        other.owner.hold().unwrap();
        let owner = other.owner.ensure(&other.db).unwrap();
        let mut maintenance = Maintenance::default();
        maintenance.work(&mut here).unwrap();
        let look = |maintenance: &mut Maintenance, here: &Database, times| {
            for _ in 0..times {
                maintenance.look_at_owners(here).unwrap();
            }
            (maintenance.gone.clone(), maintenance.is_work_left(here))
        };
        assert_eq!(look(&mut maintenance, &here, DOUBTS), (vec![], false));
        assert_eq!(look(&mut maintenance, &here, 1), (vec![], true), "it writes something itself");
        here.db.execute_batch("PRAGMA query_only = 1").unwrap();
        let error = maintenance.work(&mut here).unwrap_err();
        maintenance.fail(&here, &error);
        here.db.execute_batch("PRAGMA query_only = 0").unwrap();
        assert_eq!(look(&mut maintenance, &here, LOOKS), (vec![], true), "it begins anew");
        let before = sql::data_version(&other.db).unwrap();
        maintenance.work(&mut here).unwrap();
        assert_ne!(sql::data_version(&other.db).unwrap(), before, "it has written");
        assert_eq!(look(&mut maintenance, &here, 1), (vec![(owner, Some(0))], true));
        maintenance.fail(&here, &error);
        assert_eq!((&*maintenance.gone, maintenance.is_work_left(&here)), (&[][..], false));
    }
}
