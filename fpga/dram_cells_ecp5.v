// Pins of the DRAM in the I/O cells of ECP5; dram_cells_generic.v has the same modules for simulation.

// A register in front of an output.
module dram_output(input clk, input d, output q);
  OFS1P3BX register(.SCLK(clk), .SP(1'b1), .PD(1'b0), .D(d), .Q(q));
endmodule

// A pin of both directions with registers for both and for the driver.
module dram_inout(input clk, input d, input oe, output q, inout pad);
  wire driven, taken;
  reg idle = 1;
  always @(posedge clk) idle <= ~oe;
  OFS1P3BX out(.SCLK(clk), .SP(1'b1), .PD(1'b0), .D(d), .Q(driven));
  IFS1P3BX in(.SCLK(clk), .SP(1'b1), .PD(1'b0), .D(taken), .Q(q));
  BB buffer(.B(pad), .I(driven), .T(idle), .O(taken));
endmodule

// A pin of both directions, of a PHY that has its own registers.
module dram_tristate(input d, input oe, output q, inout pad);
  BB buffer(.B(pad), .I(d), .T(~oe), .O(q));
endmodule
