//! Images from files, for machines that reach no registry.

use anyhow::Context as _;
use remora_engine::image::archive::import;
use remora_engine::store::Store;
use std::path::{Path, PathBuf};

use crate::out;

/// Takes the images of archives and layouts into the store, where containers find them by name.
pub(super) fn take_in(archives: &[PathBuf], store: &Path) -> anyhow::Result<()> {
    if archives.is_empty() {
        return Ok(());
    }
    let store = Store::open(store).context("open the store of images")?;
    for path in archives {
        let taken = import(&store, path, None).map_err(|error| {
            let hint = error.hint().map(|h| format!("; {h}")).unwrap_or_default();
            anyhow::Error::from(error).context(format!("take images from {}{hint}", path.display()))
        })?;
        for reference in &taken.references {
            out::note(format_args!("took {reference} from {}", path.display()));
        }
        if taken.devices > 0 {
            out::note(format_args!(
                "{} device files in {} are left out; a container gets its own devices",
                taken.devices,
                path.display()
            ));
        }
    }
    Ok(())
}
