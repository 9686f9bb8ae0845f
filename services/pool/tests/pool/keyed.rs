//! Pools for keys.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake::pool::{GetError, Keyed, KeyedManager, Lease};
use pikake::{sleep, spawn};

use crate::objects::{Failed, MS};

/// Makes texts, and notes what happened.
#[derive(Default, Clone)]
struct Texts(Rc<RefCell<Vec<String>>>);

impl KeyedManager<&'static str> for Texts {
    type Object = String;
    type Error = Failed;

    async fn create(&self, key: &&'static str) -> Result<String, Failed> {
        if *key == "down" {
            return Err(Failed("refused"));
        }
        self.0.borrow_mut().push(format!("make {key}"));
        Ok((*key).to_owned())
    }

    async fn destroy(&self, key: &&'static str, text: String) {
        assert_eq!(*key, text);
        self.0.borrow_mut().push(format!("destroy {key}"));
    }
}

fn pools(texts: &Texts, limit: usize) -> Keyed<&'static str, Texts> {
    Keyed::new(texts.clone(), limit, |_, pool| pool.limit(2).max_idle_time(Some(10 * MS)))
}

#[pikake::sim]
async fn keys_never_mix() {
    let texts = Texts::default();
    let pools = pools(&texts, 10);
    for _ in 0..3 {
        let (http, https) = (pools.get(&"http").await.unwrap(), pools.get(&"https").await.unwrap());
        assert_eq!((&**http, &**https), ("http", "https"));
    }
    assert_eq!(texts.0.take(), ["make http", "make https"]);
    sleep(MS).await.unwrap();
    assert_eq!(pools.try_get(&"http").as_deref().map(String::as_str), Some("http"));
    assert!(pools.try_get(&"ftp").is_none());
    assert_eq!(pools.stats().len(), 2);
}

#[pikake::sim]
async fn idle_keys_go() {
    let texts = Texts::default();
    let pools = pools(&texts, 10);
    let held = pools.get(&"held").await.unwrap();
    drop(pools.get(&"idle").await.unwrap());
    assert!(pools.get(&"down").await.is_err());
    sleep(20 * MS).await.unwrap();
    let keys: Vec<_> = pools.stats().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["down", "held"], "the failure is remembered");
    sleep(Duration::from_secs(10)).await.unwrap();
    let keys: Vec<_> = pools.stats().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["held"]);
    drop(Lease::detach(held));
    sleep(MS).await.unwrap();
    assert_eq!((pools.stats().len(), pools.limit().used()), (0, 0));
}

#[pikake::sim]
async fn one_key_has_its_own_limit() {
    let pools = pools(&Texts::default(), 10);
    let _two = (pools.get(&"a").await.unwrap(), pools.get(&"a").await.unwrap());
    let error = pools.get_timeout(&"a", MS).await.unwrap_err();
    assert!(matches!(&error, GetError::Exhausted(error) if error.pool == "\"a\""), "{error}");
    drop(pools.get_timeout(&"b", MS).await.unwrap());
}

/// The limit of all keys is reached: the key that has been idle for longest makes room.
#[pikake::sim(seeds = 10)]
async fn idle_objects_make_room_for_other_keys() {
    let texts = Texts::default();
    let pools = Keyed::new(texts.clone(), 2, |_, pool| pool.limit(2));
    for key in ["a", "b"] {
        drop(pools.get(&key).await.unwrap());
        sleep(MS).await.unwrap();
    }
    let c = pools.get(&"c").await.unwrap();
    assert_eq!(texts.0.take(), ["make a", "make b", "destroy a", "make c"]);
    let b = pools.get(&"b").await.unwrap();
    let other = pools.clone();
    let waiting = spawn(async move { other.get(&"a").await.map(|text| text.len()) });
    sleep(MS).await.unwrap();
    assert_eq!(pools.limit().used(), 2);
    drop(b);
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
    assert_eq!(texts.0.take(), ["destroy b", "make a"]);
    drop(c);
}

#[pikake::sim]
async fn all_keys_are_closed() {
    let texts = Texts::default();
    let pools = pools(&texts, 10);
    let held = pools.get(&"a").await.unwrap();
    drop(pools.get(&"b").await.unwrap());
    let report = pools.close(MS).await;
    assert_eq!((report.holders.len(), report.left, pools.is_closed()), (1, 0, true));
    assert!(matches!(pools.get(&"b").await, Err(GetError::Closed)));
    drop(held);
    sleep(MS).await.unwrap();
    assert_eq!((pools.limit().used(), texts.0.borrow().len()), (0, 4));
}
