// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of rows and the columns each kind fills.
//!
//! One table at the top yields the enum, the names in the file's fixed dictionary, the columns that are never
//! null for a kind, and (through a test) the table in `docs/trace-format.md`; so none of them can drift apart.
//! The order is part of the format: a minor version appends kinds at the end and never reorders them.

use std::fmt;

/// A column whose presence follows from the kind of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Column {
    /// `device`: index of the GPU; -1 is pinned host memory.
    Device,
    /// `stream`: the stream's handle, 0 for the default stream.
    Stream,
    /// `address`: first byte of the range.
    Address,
    /// `size`: bytes, or a count for `unmodelled`.
    Size,
    /// `requested`: bytes the program requested.
    Requested,
    /// `free`: bytes the driver reported as free.
    Free,
    /// `handle`: physical memory handle of the driver.
    Handle,
}

impl Column {
    /// All of them, in the order of the file.
    pub const ALL: [Self; 7] = [
        Self::Device,
        Self::Stream,
        Self::Address,
        Self::Size,
        Self::Requested,
        Self::Free,
        Self::Handle,
    ];

    /// The column's name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Stream => "stream",
            Self::Address => "address",
            Self::Size => "size",
            Self::Requested => "requested",
            Self::Free => "free",
            Self::Handle => "handle",
        }
    }
}

/// A set of [`Column`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns(u8);

impl Columns {
    const fn from_list(columns: &[Column]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < columns.len() {
            bits |= 1 << columns[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// Whether the column is in the set.
    pub const fn has(self, column: Column) -> bool {
        self.0 & (1 << column as u8) != 0
    }
}

macro_rules! kinds {
    ($($variant:ident $name:literal [$($column:ident)*] $doc:literal;)*) => {
        /// The event of a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = $doc] $variant,)*
        }

        impl Kind {
            /// Every kind, in the order of the file's dictionary.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in the file's `kind` column.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The columns that are never null in a row of this kind.
            pub const fn columns(self) -> Columns {
                match self { $(Self::$variant => const { Columns::from_list(&[$(Column::$column,)*]) },)* }
            }

            /// The meaning of the kind, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }
        }
    };
}

kinds! {
    Meta "meta" [] "A fact about the recording or one process: `name` is the key, `text` the value.";
    Frame "frame" [] "One frame of a stack: `id`, `stack` (the caller's frame, null for the outermost), `name` (function), `file`, `line`.";
    Mark "mark" [] "A named moment: `name`; `text` is its sort (`step`), null for the user's own.";
    MarkStart "mark_start" [] "A named range begins: `name`; `text` is its sort (`phase`, `module`), null for the user's own.";
    MarkEnd "mark_end" [] "A named range ends: `name` and `text` as where it began.";
    Alloc "alloc" [Device Stream Address Requested] "PyTorch handed out a block; `requested` is the requested size, `size` what the block takes, if known.";
    FreeRequested "free_requested" [Device Stream Address Requested] "The program freed a block; `requested` and `size` as in `alloc`.";
    FreeCompleted "free_completed" [Device Stream Address Requested] "The block became free; `address` is before merging with neighbours.";
    SegmentAlloc "segment_alloc" [Device Stream Address Size] "PyTorch obtained a segment from the driver.";
    SegmentFree "segment_free" [Device Stream Address Size] "PyTorch gave a segment back.";
    SegmentMap "segment_map" [Device Stream Address Size] "Physical memory was mapped into an expandable segment.";
    SegmentUnmap "segment_unmap" [Device Stream Address Size] "Physical memory was unmapped from an expandable segment.";
    Snapshot "snapshot" [Device Stream Address Size] "A snapshot was taken; `size` is the active bytes of the device.";
    Oom "oom" [Device Stream Size Free] "PyTorch ran out of memory: `size` is the rounded request, `free` what the driver had left.";
    Annotate "annotate" [Device Stream Address Requested] "A live block was annotated; `text` is the note.";
    OtherAction "other_action" [Device Stream Address Size] "An action of PyTorch this version does not know; `name` is its word.";
    InitialSegment "initial_segment" [Device Stream Address Size Requested] "A segment that existed before the first event; `name` is small or large, `text` is expandable or null.";
    InitialBlock "initial_block" [Device Stream Address Size Requested] "A block of the initial_segment row above it; `name` is its state.";
    FinalSegment "final_segment" [Device Stream Address Size Requested] "A segment that existed after the last event; `name` is small or large, `text` is expandable or null.";
    FinalBlock "final_block" [Device Stream Address Size Requested] "A block of the final_segment row above it; `name` is its state.";
    DriverMalloc "driver_malloc" [Device Address Size Requested] "The driver handed out memory (cuMemAlloc); `size` is what it took, `requested` the requested size.";
    DriverFree "driver_free" [Device Address Size] "Memory went back to the driver (cuMemFree).";
    DriverCreate "driver_create" [Device Size Handle] "Physical memory was created (cuMemCreate).";
    DriverRelease "driver_release" [Device Size Handle] "Physical memory was released (cuMemRelease).";
    DriverReserve "driver_reserve" [Address Size] "An address range was reserved (cuMemAddressReserve).";
    DriverUnreserve "driver_unreserve" [Address Size] "An address range was given up (cuMemAddressFree).";
    DriverMap "driver_map" [Device Address Size Handle] "Physical memory was mapped (cuMemMap).";
    DriverUnmap "driver_unmap" [Device Address Size] "A mapping was removed (cuMemUnmap).";
    DriverContext "driver_context" [Device Size] "A context came into being; `size` is the memory it takes.";
    DriverOom "driver_oom" [Device Size Free] "The driver refused a request; `name` is the call.";
    HostAlloc "host_alloc" [Address Size] "Pinned host memory was allocated or registered.";
    HostFree "host_free" [Address Size] "Pinned host memory was freed or unregistered.";
    PoolMalloc "pool_malloc" [Device Stream Address Size] "The driver's stream-ordered pool handed out memory (cuMemAllocAsync).";
    PoolFree "pool_free" [Device Stream Address Size] "Memory went back to the driver's stream-ordered pool (cuMemFreeAsync).";
    Unmodelled "unmodelled" [Size] "A call the recorder does not model: `name` is the call, `size` how often.";
    Owner "owner" [Device Address] "The owner of a live block: `name` is the tensor, `text` the category and, after a space, its type and shape.";
    ManagedAlloc "managed_alloc" [Device Address Size Requested] "Managed memory was allocated (cuMemAllocManaged): it moves between host and device, so no device is charged.";
    ManagedFree "managed_free" [Device Address Size] "Managed memory was freed.";
    PoolTrim "pool_trim" [Device] "A stream-ordered pool gave memory back to the device; `charged` and `in_use` are what is left.";
    Holder "holder" [Device Address] "The holder of a live block, as Python reported it at this moment: `name` is the variable, `text` the sort of holder and, after a space, its file and line.";
    Measured "measured" [Device Free] "A real device reported how much is in use: `charged` by this process, `in_use` by all; `free` is the rest. `name` is `computed` where it follows from the last reading and PyTorch's own rows.";
    Used "used" [Device Address] "The uses of a block that is alive at the end of the process.";
}

impl Kind {
    /// The kind with this name, if this version knows it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether the row is an event: everything but `meta` and `frame`, which describe other rows.
    pub const fn is_event(self) -> bool {
        !matches!(self, Self::Meta | Self::Frame)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_found_again() {
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
        }
    }

    #[test]
    fn the_document_lists_every_kind_with_its_columns() {
        let document = include_str!("../../../docs/trace-format.md");
        for (code, kind) in Kind::ALL.iter().enumerate() {
            let columns: Vec<String> = Column::ALL
                .iter()
                .filter(|c| kind.columns().has(**c))
                .map(|c| format!("`{}`", c.name()))
                .collect();
            let row = format!(
                "| {code} | `{kind}` | {} | {} |",
                columns.join(" "),
                kind.meaning()
            );
            assert!(
                document.contains(&row),
                "docs/trace-format.md lacks this line:\n{row}"
            );
        }
    }
}
