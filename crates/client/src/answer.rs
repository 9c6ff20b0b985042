//! Taking the answers of the core apart.

use dafs_protocol::Attr;

use crate::core::{FileKey, Object, Output};
use crate::error::{Error, Result};

/// An answer of another kind than the call's.
pub(crate) fn unexpected<F: std::fmt::Debug>(output: &Output<F>) -> Error {
    Error::PeerProtocol(format!("unexpected answer {output:?}"))
}

/// An object, with its handle.
pub(crate) fn node_of<F: std::fmt::Debug>(output: Output<F>) -> Result<Object> {
    match output {
        Output::Object(node) => Ok(node),
        other => Err(unexpected(&other)),
    }
}

/// Attributes.
pub(crate) fn attr_of<F: std::fmt::Debug>(output: Output<F>) -> Result<Attr> {
    match output {
        Output::Attr(attr) | Output::Got { attr, .. } => Ok(attr),
        Output::Object(node) => Ok(node.attr),
        other => Err(unexpected(&other)),
    }
}

/// Bytes that belong to the core.
pub(crate) fn bytes_of(output: Output<FileKey>) -> Result<Vec<u8>> {
    match output {
        Output::Bytes { data, .. } => Ok(data),
        other => Err(unexpected(&other)),
    }
}
