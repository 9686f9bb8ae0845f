//! The files of the page, which the program contains.

use crate::page::{Asset, CSS, HTML, SCRIPT};

macro_rules! assets {
    ($($name:literal as $served:literal: $media_type:ident),* $(,)?) => {
        const ASSETS: &[Asset] = &[$(Asset {
            name: $served,
            media_type: $media_type,
            text: include_str!(concat!("page/", $name)),
        }),*];
    };
}

assets! {
    "page.html" as "": HTML,
    "page.css" as "page.css": CSS,
    "page.js" as "page.js": SCRIPT,
    "api.js" as "api.js": SCRIPT,
    "dom.js" as "dom.js": SCRIPT,
    "profile.js" as "profile.js": SCRIPT,
    "stats.js" as "stats.js": SCRIPT,
    "tasks.js" as "tasks.js": SCRIPT,
    "timelines.js" as "timelines.js": SCRIPT,
    "waits.js" as "waits.js": SCRIPT,
}

/// The file with this name; the page itself has none.
pub(crate) fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}
