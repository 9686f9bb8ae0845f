//! The place of a panic, which the payload of the panic does not have.
//!
//! Only the panic hook gets the place. [`note_panic_places`] adds a hook that notes the place for
//! the thread, and then calls the hook before it. A [`Panic`](crate::Panic) takes the note.

use std::any::Any;
use std::cell::Cell;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::sync::Once;
use std::thread;

/// A panic, as the hook sees it.
struct Noted {
    place: Box<str>,
    /// Compared with the text of a payload: the thread's last panic is another one if the payload
    /// comes from another thread, or if a destructor has panicked meanwhile.
    text: Option<Box<str>>,
}

thread_local! {
    static LAST: Cell<Option<Noted>> = const { Cell::new(None) };
}

/// Makes reports of crashed tasks, and [`Panic::place`](crate::Panic::place), name the place of the
/// panic.
///
/// The function adds a panic hook, which notes the place and calls the hook that was set before.
/// The second call does nothing. `#[pikake::main]` calls the function first. A hook that the
/// program sets later should call the one before.
///
/// # Examples
///
/// ```
/// use pikake::spawn;
/// use pikake::traps::note_panic_places;
///
/// note_panic_places();
/// # pikake::run(async {
/// let error = spawn(async { panic!("no luck") }).await.unwrap_err();
/// let place = error.panic().and_then(|panic| panic.place());
/// assert!(place.is_some_and(|place| place.contains(".rs:")));
/// # });
/// ```
pub fn note_panic_places() {
    static ONCE: Once = Once::new();
    // A panicking thread cannot change the hook.
    if thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            note(panic);
            before(panic);
        }));
    });
}

fn note(panic: &PanicHookInfo<'_>) {
    let noted = panic.location().map(|place| Noted {
        place: place.to_string().into(),
        text: text_of(panic.payload()).map(Into::into),
    });
    // A thread that ends may have dropped its note already.
    let _ = LAST.try_with(|last| last.set(noted));
}

/// The place of the thread's last panic, if the payload is that panic's.
pub(crate) fn take_place(payload: &(dyn Any + Send)) -> Option<Box<str>> {
    let Noted { place, text } = LAST.try_with(Cell::take).ok()??;
    (text.as_deref() == text_of(payload)).then_some(place)
}

/// The text of a panic, if its payload is a text.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> Option<&str> {
    match panic.downcast_ref::<&'static str>() {
        Some(text) => Some(text),
        None => panic.downcast_ref::<String>().map(String::as_str),
    }
}
