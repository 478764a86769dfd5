"""The KV cache in memory: page table, prefetch, reads, writes and copies on one AXI4 port (golden `MemoryMap`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from golden.cache.page_table import PageOp, PageStatus
from rtl.cache._copier import Copier
from rtl.cache._prefetch import Prefetcher, owner_layout
from rtl.cache._translator import Translator, address_bits, words_layout
from rtl.cache._writer import Writer, done_layout, write_layout
from rtl.cache.axi import READ, WRITE, AxiConfig
from rtl.cache.axi_reader import AxiReader
from rtl.cache.axi_writer import AxiWriter
from rtl.cache.page_table import PageConfig, PageTable
from rtl.common.memory import BlockFifo
from rtl.common.stage import ForwardStage, Stage
from rtl.config import AcceleratorConfig
from rtl.mha._requests import request_layout
from rtl.mha._scan import job_layout, scan_layout

__all__ = ["KvCache", "settings_layout"]

#: requests of attention whose words have not all been given
REQUESTS = 128
#: read requesters: attention, prefetch, copies of blocks, words of pages; from PLAIN on the ports that give addresses
ATTENTION, PREFETCH, COPY, PAGES, PLAIN = range(5)
#: write requesters; from PLAIN_WRITES on the ports that give addresses
WRITES, COPIES, PLAIN_WRITES = range(3)
#: requesters of translations
READS, SCANS, STORES, FETCHES = range(4)


def settings_layout(config: AcceleratorConfig) -> data.StructLayout:
    """Registers of the host: where the pools begin, in words; ``prefetch`` scans; the arbiter's share and pressure."""
    address = address_bits(config)
    return data.StructLayout({"record_base": address, "block_base": address, "prefetch": 1, "share": 8, "pressure": 16})


def status_layout(reader: AxiReader, writer: AxiWriter, pages: PageTable) -> data.StructLayout:
    """For the host: the first fault of reads and of writes, whether a requester's word came or waited, free pages."""
    return data.StructLayout(
        {
            "read_fault": reader.fault.shape(),
            "write_fault": writer.fault.shape(),
            "read_words": reader.words.shape(),
            "read_waits": reader.waits.shape(),
            "write_words": writer.words.shape(),
            "record_pages_free": pages.record_pages_free.shape(),
            "block_pages_free": pages.block_pages_free.shape(),
        }
    )


class KvCache(wiring.Component):
    """Serves the attention core and others from paged DRAM, and writes what is new to it.

    Attention. ``i_query`` tells which cache a query reads and passes its job on; scan lists pass by, so that scans are
    read ahead (L2); requests of the core are looked up in the page table, and their words come back in the order of the
    requests, from the buffer of scans or from that of everything else (L1). A group without a page gives words with
    ``error``, which the core reports; so do all groups of a sequence that nobody holds (HOLD), whose pages may be given
    up at any time.

    Pages. Commands go to PageTable. A FORK is answered when the open block has been copied; ``failed`` is 1 if memory
    failed: the fork exists, but its open block is not to be used. A write with ``commit`` counts from the moment that
    memory has acknowledged all of it.

    Stalls: any stream may stall. Room for words is reserved before they are asked for, so no requester waits until
    another one takes its words.
    Combinational paths: ``i_query`` to ``o_job`` and back.

    Parameters
    ----------
    config : AcceleratorConfig

    Members
    -------
    settings : struct, see `settings_layout`; may change while nothing is under way
    status : struct, see `status_layout`; ``fault_clear`` forgets the faults
    i_query : stream of struct{owner{sequence, stream}, job}; o_job : the core's job
    i_scan, o_scan : scan lists to the core
    i_request, o : the core's requests, and their words
    i_command, o_reply : of PageTable
    i_write, i_word, o_done : writes, their words with byte strobes, how each ended
    i_fetch, o_fetch : words of pages for others than attention
    i_read, o_read : per port: requests in words of memory, and their words
    i_store, i_store_word, o_stored : per port: writes in words of memory, their words with byte strobes, whether each
        failed
    axi : AXI4, as manager; ids of reads and of writes are independent of each other
    """

    @staticmethod
    def axi_configs(config: AcceleratorConfig) -> tuple[AxiConfig, AxiConfig]:
        """Geometry of reads and of writes."""
        c = config.cache
        common = {"data_bits": config.dsq.bus_bits, "addr_bits": c.addr_bits, "max_burst": c.max_burst}
        room = max(64, 4 * c.max_burst)
        buffers = (c.l1_words, c.l2_words) + (room,) * (2 + c.read_ports)
        return (
            AxiConfig(**common, outstanding=c.outstanding, depths=buffers),
            AxiConfig(**common, outstanding=c.outstanding, depths=(room,) * (2 + c.write_ports)),
        )

    @staticmethod
    def id_bits(config: AcceleratorConfig) -> int:
        """Bits of an AXI id."""
        return KvCache.axi_configs(config)[0].id_bits

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        c = config.cache
        self.read_config, self.write_config = self.axi_configs(config)
        self._reader, self._writer = AxiReader(self.read_config), AxiWriter(self.write_config)
        self._pages = PageTable(
            PageConfig(
                max_sequences=c.max_sequences,
                streams=c.streams,
                max_groups=config.mha.max_groups,
                record_pages=c.record_pages,
                block_pages=c.block_pages,
            )
        )
        word = self._reader.o[0].payload.shape()
        members: dict[str, Any] = {
            "settings": In(settings_layout(config)),
            "status": Out(status_layout(self._reader, self._writer, self._pages)),
            "fault_clear": In(1),
            "i_query": In(stream.Signature(data.StructLayout({"owner": owner_layout(config), "job": job_layout()}))),
            "o_job": Out(stream.Signature(job_layout())),
            "i_scan": In(stream.Signature(scan_layout())),
            "o_scan": Out(stream.Signature(scan_layout())),
            "i_request": In(stream.Signature(request_layout(config))),
            "o": Out(stream.Signature(word)),
            "i_command": In(stream.Signature(self._pages.command_shape)),
            "o_reply": Out(stream.Signature(data.StructLayout({"reply": self._pages.reply_shape, "failed": 1}))),
            "i_write": In(stream.Signature(write_layout(config))),
            "i_word": In(stream.Signature(self._writer.i[0].payload.shape())),
            "o_done": Out(stream.Signature(done_layout())),
            "i_fetch": In(stream.Signature(words_layout(config))),
            "o_fetch": Out(stream.Signature(word)),
            "axi": Out(self.read_config.signature(WRITE + READ)),
        }
        request = self.read_config.request_shape
        if c.read_ports:
            members["i_read"] = In(stream.Signature(request)).array(c.read_ports)
            members["o_read"] = Out(stream.Signature(word)).array(c.read_ports)
        if c.write_ports:
            strobed = self._writer.i[0].payload.shape()
            members["i_store"] = In(stream.Signature(request)).array(c.write_ports)
            members["i_store_word"] = In(stream.Signature(strobed)).array(c.write_ports)
            members["o_stored"] = Out(stream.Signature(1)).array(c.write_ports)
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, settings = self.config, self.settings
        m.submodules.reader = reader = self._reader
        m.submodules.writer = writer = self._writer
        m.submodules.pages = pages = self._pages
        m.submodules.translator = translator = Translator(config, 4, writer=STORES)
        m.submodules.prefetcher = prefetcher = Prefetcher(config)
        m.submodules.writes = writes = Writer(config, pages)
        m.submodules.copier = copier = Copier(config)
        connect(m, translator.o_lookup, pages.i_lookup)
        connect(m, pages.o_page, translator.i_page)
        m.d.comb += [
            translator.record_base.eq(settings.record_base),
            translator.block_base.eq(settings.block_base),
            copier.base.eq(settings.block_base),
            prefetcher.enable.eq(settings.prefetch),
            reader.share.eq(settings.share),
            reader.pressure.eq(settings.pressure),
        ]
        self._attention(m, translator, prefetcher, reader)
        self._commands(m, pages, writes, copier)
        self._writes(m, translator, writes, writer)
        self._copies(m, copier, reader, writer)
        connect(m, flipped(self.i_fetch), translator.i[FETCHES])
        connect(m, translator.o[FETCHES], reader.i_request[PAGES])
        connect(m, reader.o[PAGES], flipped(self.o_fetch))
        for n in range(config.cache.read_ports):
            connect(m, flipped(self.i_read[n]), reader.i_request[PLAIN + n])
            connect(m, reader.o[PLAIN + n], flipped(self.o_read[n]))
        for n in range(config.cache.write_ports):
            connect(m, flipped(self.i_store[n]), writer.i_request[PLAIN_WRITES + n])
            connect(m, flipped(self.i_store_word[n]), writer.i[PLAIN_WRITES + n])
            connect(m, writer.o[PLAIN_WRITES + n], flipped(self.o_stored[n]))
        for port in (reader.axi, writer.axi):
            for name, member in port.signature.members.items():
                inside, outside = getattr(port, name), getattr(self.axi, name)
                m.d.comb += outside.eq(inside) if member.flow is Out else inside.eq(outside)
        for port in (reader, writer):
            m.d.comb += port.fault_clear.eq(self.fault_clear)
        m.d.comb += [
            self.status.read_fault.eq(reader.fault),
            self.status.write_fault.eq(writer.fault),
            self.status.read_words.eq(reader.words),
            self.status.read_waits.eq(reader.waits),
            self.status.write_words.eq(writer.words),
            self.status.record_pages_free.eq(pages.record_pages_free),
            self.status.block_pages_free.eq(pages.block_pages_free),
        ]
        return m

    def _attention(self, m: Module, translator: Translator, prefetcher: Prefetcher, reader: AxiReader) -> None:
        """Queries and scan lists to the core; its requests; their words, from where each was asked for."""
        request = self.i_request.payload
        m.submodules.reads = reads = ForwardStage(words_layout(self.config))
        connect(m, reads.o, translator.i[READS])
        words = reads.i.payload
        order = data.StructLayout({"prefetched": 1, "count": request["count"].shape()})
        m.submodules.order = queue = BlockFifo(width=order.size, depth=REQUESTS)
        m.submodules.oldest = front = Stage(order)  # block RAM is too slow to choose by
        m.d.comb += [
            self.o_job.valid.eq(self.i_query.valid),
            self.o_job.payload.eq(self.i_query.payload.job),
            self.i_query.ready.eq(self.o_job.ready),
            prefetcher.begin.eq(self.i_query.valid & self.i_query.ready),
            prefetcher.owner.eq(self.i_query.payload.owner),
        ]
        connect(m, flipped(self.i_scan), prefetcher.i)
        connect(m, prefetcher.o, flipped(self.o_scan))
        connect(m, prefetcher.o_request, translator.i[SCANS])
        connect(m, translator.o[READS], reader.i_request[ATTENTION])
        connect(m, translator.o[SCANS], reader.i_request[PREFETCH])

        # A record's first word is asked for by its scan alone. Scans are read ahead when attention asks for nothing.
        prefetched, taken, scans = Signal(), Signal(), Signal()
        m.d.comb += [
            prefetcher.free.eq(
                ~(self.i_request.valid | reads.o.valid | translator.busy[READS] | reader.asking[ATTENTION])
            ),
            prefetcher.busy.eq(translator.busy[SCANS] | reader.asking[PREFETCH]),
        ]
        owner = prefetcher.owners[request.slot]
        m.d.comb += [
            scans.eq(~request.dense & (request.word == 0)),
            prefetched.eq(scans & prefetcher.asked),
            reads.i.valid.eq(self.i_request.valid & queue.w_rdy & ~prefetched),
            words.sequence.eq(owner.sequence),
            words.stream.eq(owner.stream),
            *(words[name].eq(request[name]) for name in ("dense", "group", "word", "count")),
            self.i_request.ready.eq(queue.w_rdy & (prefetched | reads.i.ready)),
            taken.eq(self.i_request.valid & self.i_request.ready),
            prefetcher.taken.eq(taken & scans),
            queue.w_en.eq(taken),
            queue.w_data.eq(Cat(prefetched, request.count)),
        ]
        oldest, given = front.o.payload, Signal.like(request.count)
        last = given == oldest.count - 1
        moved = self.o.valid & self.o.ready
        m.d.comb += [
            self.o.valid.eq(
                front.o.valid & Mux(oldest.prefetched, reader.o[PREFETCH].valid, reader.o[ATTENTION].valid)
            ),
            self.o.payload.eq(
                Mux(oldest.prefetched, reader.o[PREFETCH].payload.as_value(), reader.o[ATTENTION].payload.as_value())
            ),
            reader.o[ATTENTION].ready.eq(moved & ~oldest.prefetched),
            reader.o[PREFETCH].ready.eq(moved & oldest.prefetched),
            front.i.valid.eq(queue.r_rdy),
            front.i.payload.eq(queue.r_data),
            queue.r_en.eq(front.i.ready),
            front.o.ready.eq(moved & last),
        ]
        with m.If(moved):
            m.d.sync += given.eq(Mux(last, 0, given + 1))

    def _commands(self, m: Module, pages: PageTable, writes: Writer, copier: Copier) -> None:
        """One command at a time, commits of writes first; a fork is answered when its open block has been copied."""
        reply = pages.o_reply.payload
        of_write, forks, copies = Signal(), Signal(), Signal()
        m.d.comb += [
            copies.eq(forks & (reply.status == PageStatus.OK) & (reply.page != reply.other)),
            writes.i_reply.payload.eq(reply),
            self.o_reply.payload.reply.eq(reply),
            copier.i.payload.source.eq(reply.other),
            copier.i.payload.target.eq(reply.page),
        ]
        with m.FSM(name="commands"):
            with m.State("COMMAND"):
                command = Mux(
                    writes.o_command.valid, writes.o_command.payload.as_value(), self.i_command.payload.as_value()
                )
                m.d.comb += [
                    pages.i_command.valid.eq(writes.o_command.valid | self.i_command.valid),
                    pages.i_command.payload.eq(command),
                    writes.o_command.ready.eq(pages.i_command.ready),
                    self.i_command.ready.eq(pages.i_command.ready & ~writes.o_command.valid),
                ]
                with m.If(pages.i_command.valid & pages.i_command.ready):
                    m.d.sync += [
                        of_write.eq(writes.o_command.valid),
                        forks.eq(pages.i_command.payload.op == PageOp.FORK),
                    ]
                    m.next = "REPLY"
            with m.State("REPLY"):
                with m.If(of_write):
                    m.d.comb += [
                        writes.i_reply.valid.eq(pages.o_reply.valid),
                        pages.o_reply.ready.eq(writes.i_reply.ready),
                    ]
                with m.Elif(copies):
                    m.d.comb += copier.i.valid.eq(pages.o_reply.valid)
                    with m.If(copier.i.valid & copier.i.ready):
                        m.next = "COPY"
                with m.Else():
                    m.d.comb += [self.o_reply.valid.eq(pages.o_reply.valid), pages.o_reply.ready.eq(self.o_reply.ready)]
                with m.If(pages.o_reply.valid & pages.o_reply.ready):
                    m.next = "COMMAND"
            with m.State("COPY"):
                m.d.comb += [
                    self.o_reply.valid.eq(copier.o.valid),
                    self.o_reply.payload.failed.eq(copier.o.payload),
                    copier.o.ready.eq(self.o_reply.ready),
                    pages.o_reply.ready.eq(copier.o.valid & self.o_reply.ready),
                ]
                with m.If(pages.o_reply.ready):
                    m.next = "COMMAND"

    def _writes(self, m: Module, translator: Translator, writes: Writer, writer: AxiWriter) -> None:
        """Writes from their stream to memory."""
        connect(m, flipped(self.i_write), writes.i)
        m.submodules.stores = stores = ForwardStage(words_layout(self.config))
        connect(m, writes.o_words, stores.i)
        connect(m, stores.o, translator.i[STORES])
        connect(m, translator.o[STORES], writes.i_span)
        connect(m, writes.o_span, writer.i_request[WRITES])
        connect(m, flipped(self.i_word), writer.i[WRITES])
        connect(m, writer.o[WRITES], writes.i_error)
        connect(m, writes.o, flipped(self.o_done))

    def _copies(self, m: Module, copier: Copier, reader: AxiReader, writer: AxiWriter) -> None:
        """Words of the copied page, from the reader to the writer."""
        source, target = reader.o[COPY], writer.i[COPIES]
        connect(m, copier.o_read, reader.i_request[COPY])
        connect(m, copier.o_write, writer.i_request[COPIES])
        connect(m, writer.o[COPIES], copier.i_error)
        m.d.comb += [
            target.valid.eq(source.valid),
            target.payload.data.eq(source.payload.data),
            target.payload.strb.eq(~0),
            source.ready.eq(target.ready),
            copier.i_read_error.eq(source.valid & source.ready & source.payload.error),
        ]
