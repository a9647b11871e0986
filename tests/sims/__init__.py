"""Simulators that let AMD's real transfer engine run where there is no AMD GPU and no RDMA card."""
