//! The files of the page, some of which are those of the console's page.

use crate::page::{Asset, CSS, HTML, SCRIPT};

const ASSETS: [Asset; 7] = [
    Asset { name: "", media_type: HTML, text: include_str!("page/dashboard.html") },
    Asset { name: "page.css", media_type: CSS, text: include_str!("../web/page/page.css") },
    Asset { name: "dashboard.css", media_type: CSS, text: include_str!("page/dashboard.css") },
    Asset { name: "api.js", media_type: SCRIPT, text: include_str!("../web/page/api.js") },
    Asset { name: "dom.js", media_type: SCRIPT, text: include_str!("../web/page/dom.js") },
    Asset { name: "charts.js", media_type: SCRIPT, text: include_str!("page/charts.js") },
    Asset { name: "dashboard.js", media_type: SCRIPT, text: include_str!("page/dashboard.js") },
];

/// The file with this name; the page itself has none.
pub(crate) fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}
